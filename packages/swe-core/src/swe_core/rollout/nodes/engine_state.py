"""EngineState: the policy version and the servers in use, sent to all nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import anyio

from swe_core.api.records import Record
from swe_core.errors import SweError
from swe_core.rollout.nodes.handle import NodeUnreachable
from swe_core.rollout.nodes.messages import Acknowledge, Server, SetVersion, from_bytes
from swe_core.rollout.nodes.node import Node


class EngineState:
    """The policy version, and the servers that get no rollouts. A node that joins gets both with `begin`.

    Args:
        tell: Sends a message to a node in the background.

    Attributes:
        version: The last news of the version; None where nothing trains.
        without: URLs of the servers that get no rollouts.
    """

    def __init__(self, nodes: Mapping[str, Node], tell: Callable[[Node, str, Record], None]) -> None:
        self.version: SetVersion | None = None
        self.without: set[str] = set()
        self._nodes = nodes
        self._tell = tell

    def set_version(self, version: int) -> None:
        """See `swe_core.api.executor.Executor.set_version`."""
        number = 1 if self.version is None else self.version.number + 1
        self.version = SetVersion(number=number, version=version)
        self._tell_all("version", self.version)

    async def take_out(self, url: str) -> Collection[str]:
        """See `swe_core.api.executor.Executor.take_out`. An unreachable node gets it when it joins again."""
        self.without.add(url)
        on_it: list[str] = []

        async def ask(node: Node) -> None:
            try:
                answer = await node.call("take_out", Server(url=url))
                on_it.extend(from_bytes(Acknowledge, answer).rollouts)
            except (NodeUnreachable, SweError):
                on_it.extend(node.running)  # unknown, so all of them
                node.miss()

        async with anyio.create_task_group() as tasks:
            for node in self._nodes.values():
                if node.joined:
                    tasks.start_soon(ask, node)
                else:
                    on_it.extend(node.running)
        return on_it

    def put_in(self, url: str) -> None:
        """See `swe_core.api.executor.Executor.put_in`."""
        self.without.discard(url)
        self._tell_all("put_in", Server(url=url))

    def _tell_all(self, method: str, message: Record) -> None:
        for node in self._nodes.values():
            if node.joined:
                self._tell(node, method, message)
