"""Node: what the driver knows of a node, and how it asks it something."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from swe_core.api.records import Record
from swe_core.errors import SweError
from swe_core.rollout.nodes.handle import NodeHandle, NodeUnreachable
from swe_core.rollout.nodes.messages import Read, to_bytes
from swe_core.rollout.nodes.order import Order
from swe_core.rollout.nodes.spool import PART, Incoming, unpack

ANSWERING = 60.0
"""Seconds that a node may take to answer a message; a poll waits for a part of it."""
_OK, _REFUSED, _NOT_BEGUN = b"+", b"-", b"?"


@dataclass(slots=True, eq=False)
class Node:
    """What the driver knows of a node.

    Attributes:
        joined: Whether it answers.
        running: Ids of the rollouts that take its slots.
        orders: The rollouts that it has to deliver, by id.
        images: The images of the rollouts that it has had.
        scope: Encloses what keeps in touch with it.
        missed: Whether a message to it was lost, so that both sides have to agree again.
        polling: Encloses a poll.
        out: Why it gets no rollouts any more; "" for one that does.
        finished: Outcome → number of rollouts.
        lost: Number of rollouts that it began and did not deliver.
    """

    handle: NodeHandle
    joined: bool = False
    out: str = ""
    incarnation: str = ""
    after: int = 0
    epoch: int = 0
    unreachable_since: float | None = None
    running: set[str] = field(default_factory=set)
    orders: dict[str, Order] = field(default_factory=dict)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    missed: bool = False
    polling: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    images: set[str | None] = field(default_factory=set)
    finished: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    @property
    def name(self) -> str:
        """Return its name."""
        return self.handle.name

    @property
    def free(self) -> int:
        """Return how many more rollouts it can take now."""
        return self.handle.slots - len(self.running) if self.joined and not self.out else 0

    def miss(self) -> None:
        """Note that a message to it was lost."""
        self.missed = True
        self.polling.cancel()

    async def call(self, method: str, message: Record | None = None, seconds: float = ANSWERING) -> bytes:
        """Return what it answers.

        Args:
            seconds: That it may take.

        Raises:
            NodeUnreachable: It does not answer in time.
            SweError: It refuses.
        """
        content = b"" if message is None else to_bytes(message)
        try:
            with anyio.fail_after(seconds):
                answer = await self.handle.call(method, content)
        except TimeoutError:
            raise NodeUnreachable(f"no answer within {seconds:g} s") from None
        if answer[:1] == _NOT_BEGUN:
            raise NodeUnreachable("it has started again")
        if answer[:1] == _REFUSED:
            raise SweError(answer[1:].decode())
        if answer[:1] != _OK:
            raise NodeUnreachable(f"it answers {answer[:100]!r}")
        return answer[1:]

    async def transfer(self, rollout_id: str, folders: Path) -> Incoming:
        """Copy a finished rollout beside its folder below `folders`. On return it is on disk.

        Raises:
            NodeUnreachable: The node does not answer.
            SweError: It cannot deliver the rollout.
            OSError: The folder cannot be written.
        """
        with tempfile.SpooledTemporaryFile(max_size=2 * PART) as file:
            while True:
                part = await self.call("read", Read(rollout=rollout_id, offset=file.tell()))
                await run_sync(file.write, part)
                if len(part) < PART:
                    break
            file.seek(0)
            return await run_sync(unpack, file, folders)
