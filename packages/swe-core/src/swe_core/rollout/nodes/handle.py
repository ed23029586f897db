"""NodeHandle: how a driver starts, calls and ends one node. A plugin with an executor implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from swe_core.errors import SweError


class NodeUnreachable(Exception):
    """The node does not answer now. It may be dead, or on the other side of a broken network."""


class NodeGone(SweError):
    """The node never comes back."""


class NodeHandle(ABC):
    """One node.

    Attributes:
        name: Its name in logs and metrics, unique within a run.
        slots: Maximum number of rollouts at the same time.
        spool: Where it keeps finished rollouts: a directory on its host.
    """

    name: str
    slots: int
    spool: str

    @abstractmethod
    async def start(self) -> None:
        """Start the node, or start it again, or find that it runs. Called before the first `call`, and after
        each that did not reach it.

        Raises:
            NodeUnreachable: It cannot be started now.
            NodeGone: It can never be started again.
            SweError: The same.
        """

    @abstractmethod
    async def call(self, method: str, message: bytes) -> bytes:
        """Return what the node answers (`swe_core.run.node.RolloutNode.answer`). The caller limits the time.

        Raises:
            NodeUnreachable: It does not answer.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End the node. If it is reachable, it got `close` before."""
