"""SimulatedNode: a node that runs nothing, for tests and benchmarks of what gives rollouts to nodes."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import orjson

from swe_core.api.records import Ledger, Rollout, Turn, TurnTokens
from swe_core.api.rollout_request import RolloutRequest
from swe_core.rollout.nodes.handle import NodeGone, NodeHandle, NodeUnreachable
from swe_core.rollout.nodes.messages import (
    Acknowledge,
    Begin,
    End,
    Event,
    FailedEvent,
    FinishedEvent,
    Joined,
    PhaseEvent,
    Poll,
    Read,
    Server,
    SetVersion,
    Start,
    TurnEvent,
    events_to_bytes,
    from_bytes,
    to_bytes,
)
from swe_core.rollout.nodes.spool import PART, Spool
from swe_testing.records import make_rollout, make_turn

_POLL = 5.0
_numbers = itertools.count(1)


class SimulatedNode(NodeHandle):
    """A node of this process that speaks the protocol. A rollout is one turn of three ids, and then ends.

    Args:
        seconds: How long each rollout takes.

    Attributes:
        reachable: Whether it answers. It goes on without a driver.
        gone: Whether it never comes back.
        refusal: Why it refuses every run; "" for none.
        full: Whether its disk is full.
        finished: Id → the file of each finished rollout that is not acknowledged.
        began: The ids of all rollouts that it has begun, in order.
        versions: The policy versions that it was told.
        without: The servers that it may not use.
        stopped: Whether the driver has ended it.
    """

    def __init__(self, name: str, slots: int = 2, seconds: float = 0.05) -> None:
        self.name, self.slots, self.spool = name, slots, "/nowhere"
        self.seconds = seconds
        self.reachable, self.gone, self.full, self.stopped, self.refusal = True, False, False, False, ""
        self.finished: dict[str, bytes] = {}
        self.began: list[str] = []
        self.versions: list[int] = []
        self.without: set[str] = set()
        self.dropping: Callable[[str], bool] = lambda method: False
        self._incarnation = str(next(_numbers))
        self._epoch, self._begun = 0, False
        self._events: list[Event] = []
        self._number = 0
        self._news = anyio.Event()
        self._running: dict[str, tuple[RolloutRequest, asyncio.TimerHandle]] = {}

    def crash(self) -> None:
        """End as with SIGKILL, and start again: what has finished is still there."""
        for _, timer in self._running.values():
            timer.cancel()
        self._running.clear()
        self._events.clear()
        self._number, self._begun = 0, False
        self._incarnation = str(next(_numbers))
        self._wake()

    async def start(self) -> None:
        if self.gone:
            raise NodeGone("it was taken away")

    async def call(self, method: str, message: bytes) -> bytes:
        self._reach()
        if self.dropping(method):
            raise NodeUnreachable("the message was lost")
        if self.refusal:
            return b"-" + self.refusal.encode()
        incarnation = self._incarnation
        if method == "begin":
            self._begun = True
        if not self._begun:
            return b"?"
        answer: bytes = await getattr(self, f"_on_{method}")(message)
        self._reach()
        if incarnation != self._incarnation:
            raise NodeUnreachable("it has crashed")
        return b"+" + answer

    async def stop(self) -> None:
        self.stopped = True
        self.crash()

    def _reach(self) -> None:
        if not self.reachable or self.gone:
            raise NodeUnreachable("the connection is broken")

    async def _on_begin(self, message: bytes) -> bytes:
        begin = from_bytes(Begin, message)
        self._epoch, self.without = begin.epoch, set(begin.without)
        if begin.version is not None:
            self.versions.append(begin.version.version)
        joined = Joined(
            incarnation=self._incarnation,
            pid=1,
            host="simulated",
            notes=("A simulated note.",),
            running=tuple(self._running),
            offered=tuple(self.finished),
        )
        return to_bytes(joined)

    async def _on_start(self, message: bytes) -> bytes:
        start = from_bytes(Start, message)
        request = start.request
        if start.epoch != self._epoch or request.id in self._running:
            return b""
        self.began.append(request.id)
        if self.full:
            self._emit(FailedEvent, rollout=request.id, why="no space left")
            return b""
        self._emit(PhaseEvent, rollout=request.id, phase="agent")
        self._emit(TurnEvent, rollout=request.id, turn=_turn())
        timer = asyncio.get_running_loop().call_later(self.seconds, self._end, request.id, None, False)
        self._running[request.id] = request, timer
        return b""

    def _end(self, rollout_id: str, why: str | None, cancelled: bool) -> None:
        request, timer = self._running.pop(rollout_id)
        timer.cancel()
        self.finished[rollout_id] = packed(request, why, cancelled=cancelled)
        self._emit(FinishedEvent, rollout=rollout_id)

    async def _on_cancel(self, message: bytes) -> bytes:
        end = from_bytes(End, message)
        if end.rollout in self._running:
            self._end(end.rollout, end.why, True)
        return b""

    async def _on_version(self, message: bytes) -> bytes:
        self.versions.append(from_bytes(SetVersion, message).version)
        return b""

    async def _on_take_out(self, message: bytes) -> bytes:
        self.without.add(from_bytes(Server, message).url)
        return to_bytes(Acknowledge(rollouts=tuple(self._running)))

    async def _on_put_in(self, message: bytes) -> bytes:
        self.without.discard(from_bytes(Server, message).url)
        return b""

    async def _on_poll(self, message: bytes) -> bytes:
        after = from_bytes(Poll, message).after
        self._events = [event for event in self._events if event.number > after]
        if not self._events:
            with anyio.move_on_after(_POLL):
                await self._news.wait()
        return events_to_bytes(self._events)

    async def _on_read(self, message: bytes) -> bytes:
        read = from_bytes(Read, message)
        return self.finished[read.rollout][read.offset : read.offset + PART]

    async def _on_acknowledge(self, message: bytes) -> bytes:
        for rollout_id in from_bytes(Acknowledge, message).rollouts:
            self.finished.pop(rollout_id, None)
        return b""

    async def _on_metrics(self, message: bytes) -> bytes:
        return b'# TYPE swe_tokens counter\nswe_tokens_total{kind="completion"} 3.0\n'

    async def _on_close(self, message: bytes) -> bytes:
        return b""

    def break_connection(self) -> None:
        """Break the connection, also of a poll that waits."""
        self.reachable = False
        self._wake()

    def _emit(self, kind: type[Event], **fields: Any) -> None:
        self._number += 1
        self._events.append(kind(number=self._number, **fields))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def packed(request: RolloutRequest, why: str | None = None, *, cancelled: bool = False) -> bytes:
    """Return the file of a finished rollout with one turn of three ids."""
    ledger = Ledger(
        sampled=3,
        trainable=0 if cancelled else 3,
        dropped={why or "cancelled": 3} if cancelled else {},
        chains=1,
        rendered={"full": 1},
    )
    rollout: Rollout = make_rollout(
        request.task.instance_id,
        request.attempt,
        "cancelled" if cancelled else "resolved",
        cancelled_as=why if cancelled else None,
        ledger=ledger,
        turns=1,
    ).model_copy(update={"id": request.id})
    with tempfile.TemporaryDirectory() as name:
        folder, spool = Path(name) / "folder", Spool(Path(name) / "spool")
        folder.mkdir()
        line = _turn().model_dump(mode="json")
        line["tokens"] |= {"prompt": [1], "completion": [1, 2, 3], "logprobs": [-0.5, -0.5, -0.5]}
        (folder / "turns.jsonl").write_bytes(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        spool.add(request.id, orjson.dumps(rollout.model_dump(mode="json")), (), folder)
        return spool.read(request.id, 0)


def _turn() -> Turn:
    tokens = TurnTokens(
        base=None, prompt=[], completion=[], logprobs=[], versions=[(0, 3)], rendered="full", cause="start"
    )
    return make_turn(tokens=tokens)
