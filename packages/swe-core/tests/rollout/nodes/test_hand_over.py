"""Regression tests of the hand-over: what once lost, mixed or repeated a rollout, or ended a run."""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
import math
import os
import sys
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import anyio
import anyio.lowlevel
import orjson
import pytest

from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError
from swe_core.rollout.nodes.messages import Begin, Poll, Start, TurnEvent, from_bytes, to_bytes
from swe_core.rollout.nodes.spool import PART, Spool, unpack
from swe_core.run.node import RolloutNode, _Log, _spool
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor
from swe_testing.nodes import SimulatedNode, _turn
from swe_testing.records import make_request, make_rollout, make_task

from .test_pool import driver, impatient, request

__all__ = ["impatient"]
pytestmark = pytest.mark.anyio


def spooled(path: Path, name: str, files: dict[str, bytes], outcome: str = "resolved") -> Spool:
    folder = path / f"folder-{name}"
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    rollout = make_rollout(id="r", outcome=outcome).model_dump(mode="json")
    (spool := Spool(path / "spool")).add("r", orjson.dumps(rollout), (), folder)
    return spool


async def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    """Cut short after its first file, or with rows that are none."""
    spooled(tmp_path, "a", {"turns.jsonl": b"x" * 600, "patch.diff": b"y" * 600})
    data = (tmp_path / "spool" / "r.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        end_of_record = archive.getmembers()[1].offset
    rows = io.BytesIO(data[:end_of_record] + bytes(1024))
    with tarfile.open(fileobj=rows, mode="a") as archive:
        member = tarfile.TarInfo("rows.npz")
        member.size = 103
        archive.addfile(member, io.BytesIO(b"PK\3\4" + b"0" * 99))
    for damaged in (io.BytesIO(data[:end_of_record]), io.BytesIO(rows.getvalue())):
        with pytest.raises(SweError, match="damaged"):
            unpack(damaged, tmp_path / "rollouts")


async def test_two_tries_of_one_spool_do_not_mix(tmp_path: Path) -> None:
    """The file is replaced while it is read in parts."""
    big = {"agent.log": b"A" * PART, "turns.jsonl": b"A" * 10, "patch.diff": b"A"}
    spool = spooled(tmp_path, "a", big)
    file = io.BytesIO(spool.read("r", 0))
    file.seek(0, 2)
    spooled(tmp_path, "b", {name: content.replace(b"A", b"B") for name, content in big.items()})
    while part := spool.read("r", file.tell()):
        file.write(part)
    file.seek(0)
    with pytest.raises(SweError, match="damaged"):
        unpack(file, tmp_path / "rollouts")


async def test_start_of_a_node_leaves_the_folders_of_one_that_still_ends(tmp_path: Path) -> None:
    """The driver was killed; its node `n` is about to pack a rollout. The next driver's `n` opens."""
    spool = tmp_path / "nodes" / "n"
    (spool / ".n.old" / "r").mkdir(parents=True)
    (spool / ".n.older").mkdir()
    with locked(spool / ".n.old"):
        _spool(begin(spool, 1))
        assert os.listdir(spool) == [".n.old"]


async def for_ever(*_: object) -> None:
    await anyio.sleep_forever()


class OpenNode(RolloutNode):
    """A node whose rollouts are what `runs` does."""

    def __init__(self, runs: Any = for_ever, redactor: Redactor | None = None) -> None:
        super().__init__(redactor or Redactor())
        self.site: Any = SimpleNamespace(notes=(), counters=b"", run=runs, cancel=lambda *_: None)

    async def _open(self, stack: Any) -> None:
        self._site = self.site
        self._spool = Spool(Path(self._began.spool))
        self._folders = self._spool.path / ".x"
        self._held = ExitStack()


def begin(path: Path, epoch: int) -> Begin:
    more: dict[str, Any] = {"settings": {}, "versions": {}, "directory": None, "version": None, "without": ()}
    return Begin(name="n", spool=str(path), clock=time.time(), epoch=epoch, **more)


@asynccontextmanager
async def begun(path: Path, node: OpenNode | None = None, epoch: int = 1) -> AsyncIterator[OpenNode]:
    """A node that has opened for a driver."""
    node = node or OpenNode()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.run)
        await node.answer("begin", to_bytes(begin(path, epoch)))
        yield node
        tasks.cancel_scope.cancel()


async def test_late_begin_does_not_make_a_node_ignore_starts(tmp_path: Path) -> None:
    ran: list[str] = []

    async def run(request: Any, *_: object) -> None:
        ran.append(request.id)

    async with begun(tmp_path, OpenNode(run), epoch=2) as node:
        await node.answer("begin", to_bytes(begin(tmp_path, 1)))  # its answer was given up; it arrives late
        assert await node.answer("start", to_bytes(Start(epoch=2, request=request("r")))) == b"+"
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert ran == ["r"], "the driver waits for it for ever"


async def test_version_set_while_a_node_opens_reaches_it(tmp_path: Path) -> None:
    """Its `begin` takes a while: it builds a bundle, or the network is slow."""
    slow, began, go = SimulatedNode("slow"), anyio.Event(), anyio.Event()
    begins = slow._on_begin

    async def slowly(message: bytes) -> bytes:
        began.set()
        await go.wait()
        return await begins(message)

    slow._on_begin = slowly  # type: ignore[method-assign]  # of this one only
    async with driver(tmp_path, SimulatedNode("fast"), slow) as made:
        await began.wait()
        made.pool.engine.set_version(3)
        await made.pool.engine.take_out("http://a/v1")
        go.set()
        await made.pool.joined(all_of_them=True)
        await made.submit_all("r0", "r1", "r2")
        with anyio.move_on_after(2):
            await made.until(lambda: slow.versions[-1:] == [3] and slow.without == {"http://a/v1"})
        assert (slow.versions, slow.without) == ([3], {"http://a/v1"})


@pytest.mark.slow
async def test_late_transfer_of_a_cancelled_rollout_does_not_end_the_run(tmp_path: Path) -> None:
    node = SimulatedNode("one", slots=1, seconds=600)
    reading, go = anyio.Event(), anyio.Event()
    read = node._on_read

    async def slowly(message: bytes) -> bytes:
        answer = await read(message)
        reading.set()
        await go.wait()  # the answer is on its way
        return answer

    node._on_read = slowly  # type: ignore[method-assign]  # of this one only
    async with driver(tmp_path, node) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: "r" in node._running)
            tasks.cancel_scope.cancel()
        # ENDING has passed, and the rollout is committed as cancelled without its node
        assert [one.outcome for one in made.committed] == ["cancelled"]
        assert reading.is_set()
        go.set()
        await made.submit_all()
        await anyio.wait_all_tasks_blocked()


async def test_request_with_any_text_and_limit_travels(tmp_path: Path) -> None:
    """JSON of most libraries has neither."""
    task = make_task("r").model_copy(update={"hints_text": "a lone surrogate: \ud83d"})
    made = make_request(task)
    limits = made.limits.model_copy(update={"agent": math.inf})
    sent = to_bytes(Start(epoch=1, request=made.model_copy(update={"limits": limits})))
    assert from_bytes(Start, sent).request.limits.agent == math.inf
    async with driver(tmp_path, SimulatedNode("one")) as driven:
        await driven.pool.submit(made.model_copy(update={"id": "r", "limits": limits}), driven, driven.commit)
    assert [rollout.outcome for rollout in driven.committed] == ["resolved"]


async def test_malformed_answer_takes_the_node_out(tmp_path: Path) -> None:
    one, two = SimulatedNode("one", slots=1), SimulatedNode("two", slots=1)
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        broken = AsyncMock(return_value=b"0 Internal Server Error")
        one._on_poll = broken  # type: ignore[method-assign]  # of this one only
        one._wake()
        await made.submit_all("r0", "r1", "r2")
        await made.until(lambda: made.pool.nodes["one"].out != "")


async def test_ids_of_the_try_that_is_given_up_are_dropped(tmp_path: Path) -> None:
    """An earlier try comes back while a later one runs: the later one's ids are dropped."""
    one, two = SimulatedNode("one", slots=1, seconds=600), SimulatedNode("two", slots=1, seconds=600)
    async with driver(tmp_path, one, two) as made:
        await made.pool.joined(all_of_them=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: ("r", "turn") in made.seen)
            away, other = (one, two) if one.began else (two, one)
            away.break_connection()
            await made.until(lambda: made.seen.count(("r", "turn")) == 2)
            for _ in range(4):
                other._emit(TurnEvent, rollout="r", turn=_turn())
            await made.until(lambda: made.seen.count(("r", "turn")) == 6)
            away._end("r", None, False)
            away.reachable = True
        rollout = made.of("r")
        # sampled: three by the try that counts, five times three by the other
        assert rollout.ledger.sampled == 18
        assert rollout.ledger.dropped == {"lost_node": 15}


async def test_only_node_that_comes_back_goes_on(tmp_path: Path) -> None:
    """Nothing ran elsewhere, so its work is not thrown away, and one split counts once."""
    node = SimulatedNode("one", slots=1, seconds=600)
    async with driver(tmp_path, node) as made:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.submit, "r")
            await made.until(lambda: ("r", "turn") in made.seen)
            node.break_connection()
            await made.until(lambda: len(made.pool._orders["r"].lost) == 1)
            node.reachable = True
            await made.until(lambda: made.pool.nodes["one"].joined)
            node._end("r", None, False)
        assert node.began == ["r"]
        assert made.of("r").retried == ()
        made.accounted()


async def test_log_line_with_a_surrogate_does_not_take_the_node_out(tmp_path: Path) -> None:
    async with begun(tmp_path) as node:
        text = "cannot read " + os.fsdecode(b"caf\xe9.txt")  # not through pytest's own handler: it fails
        _Log(node._log, Redactor()).handle(logging.LogRecord("plugin", 30, "f", 1, text, (), None))
        assert (await node.answer("poll", to_bytes(Poll(after=0))))[:1] == b"+"


async def test_events_of_other_threads_keep_their_order(tmp_path: Path) -> None:
    node = RolloutNode(Redactor())
    node._loop = asyncio.get_running_loop()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(lambda: [node._log(30, "x") for _ in range(2000)])
            for _ in range(2000):
                node._log(30, "y")
    finally:
        sys.setswitchinterval(before)
    await anyio.lowlevel.checkpoint()
    numbers = [event.number for event in node._events]
    assert len(numbers) == 6000
    assert all(first < second for first, second in itertools.pairwise(numbers))


async def test_log_of_a_thread_wakes_the_poll(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with begun(tmp_path) as node, anyio.create_task_group() as polls:
            polls.start_soon(node.answer, "poll", to_bytes(Poll(after=0)))
            await anyio.wait_all_tasks_blocked()
            threading.Thread(target=lambda: node._log(30, "x")).start()


async def test_error_to_run_again_is_not_committed_when_its_node_joins_late(tmp_path: Path) -> None:
    fast, late = SimulatedNode("fast"), SimulatedNode("late")
    late.finished["r"] = spooled(tmp_path, "a", {}, "error").read("r", 0)
    async with driver(tmp_path, fast, growing=True) as made:
        await made.pool.recover(made.commit, [], ["error"])
        made.pool.add(late)
        await made.until(lambda: made.pool.nodes["late"].joined)
        await made.submit("r")
        assert made.of("r").outcome == "resolved"
        made.nodes["late"] = late


async def test_resume_does_not_wait_for_ever_for_a_node_that_does_not_answer(tmp_path: Path) -> None:
    silent = SimulatedNode("silent")
    silent.reachable = False
    async with driver(tmp_path, SimulatedNode("one"), silent) as made:
        with anyio.move_on_after(15) as scope:  # LOST_AFTER is 0.4
            await made.pool.recover(made.commit, [], [])
    assert not scope.cancelled_caught


async def test_record_of_a_node_has_no_token_of_its_rollout(tmp_path: Path) -> None:
    """As in one process, where `commit` runs while the rollout's tokens are known."""
    redactor = Redactor()

    async def run(request: Any, observer: Any, commit: Any, *_: object) -> None:
        (tmp_path / ".x" / request.id).mkdir(parents=True)
        redactor.add("swe_tok_secret")
        commit(FinishedRollout(make_rollout(id="r", outcome="error", model="swe_tok_secret")))
        redactor.discard("swe_tok_secret")  # as `run_rollout` does

    async with begun(tmp_path, OpenNode(run, redactor)) as node:
        await node.answer("start", to_bytes(Start(epoch=1, request=request("r"))))
        while node._running:  # noqa: ASYNC110 (the node has no event for it)
            await anyio.sleep(0.01)
    assert b"swe_tok_secret" not in (tmp_path / "r.tar").read_bytes()


async def test_interrupted_try_does_not_replace_a_finished_one(tmp_path: Path) -> None:
    """Nodes on a host may share a spool: one has finished the rollout, and another has to cancel it."""
    spooled(tmp_path, "a", {"turns.jsonl": b"x"})
    kept = (tmp_path / "spool" / "r.tar").read_bytes()

    async def run(request: Any, observer: Any, commit: Any, *_: object) -> None:
        commit(FinishedRollout(make_rollout(id="r", outcome="cancelled", reward=None)))

    async with begun(tmp_path / "spool", OpenNode(run)) as node:
        await node._rollout(request("r"))
    assert (tmp_path / "spool" / "r.tar").read_bytes() == kept
