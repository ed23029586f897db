"""A node serves one run, refuses what it cannot serve in a sentence, and keeps what it has finished."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import anyio
import anyio.lowlevel
import pytest

from swe_core.api.worker import FinishedRollout
from swe_core.builtin.demo.source import DemoSource
from swe_core.rollout.nodes.messages import (
    Begin,
    Event,
    FailedEvent,
    FinishedEvent,
    Joined,
    LogEvent,
    PhaseEvent,
    Poll,
    Read,
    SetVersion,
    Start,
    events_of,
    from_bytes,
    to_bytes,
)
from swe_core.rollout.nodes.spool import Spool
from swe_core.run.node import RolloutNode, _Log, _spool
from swe_core.run.plan import sandbox_spec
from swe_core.run.settings import load_settings
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor
from swe_testing.records import make_request, make_rollout, make_task

PATIENCE = 60.0
SETS = ("run.agent=oracle", "run.plugins=[]", "sandbox.local.unisolated=true", "run.tasks=demo")


def begin(spool: Path, **changed: Any) -> bytes:
    """A driver of this machine, with the same packages."""
    known: dict[str, Any] = {
        "name": "one", "settings": load_settings(sets=SETS).model_dump(mode="json"),
        "versions": {"python": platform.python_version()}, "directory": None, "spool": str(spool),
        "clock": time.time(), "epoch": 1, "version": None, "without": (),
    }  # fmt: skip
    return to_bytes(Begin(**{**known, **changed}))


@asynccontextmanager
async def serving(node: RolloutNode | None = None) -> AsyncIterator[RolloutNode]:
    node = node or RolloutNode(Redactor())
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.run)
            yield node
            node.stop()


@asynccontextmanager
async def begun(spool: Path, node: RolloutNode | None = None, epoch: int = 1) -> AsyncIterator[RolloutNode]:
    """A node that has opened for a driver."""
    async with serving(node) as node:
        await node.answer("begin", begin(spool, epoch=epoch))
        yield node


class OpenNode(RolloutNode):
    """A node that opens at once, and whose rollouts are what `run` does."""

    def __init__(self, run: Any = None, redactor: Redactor | None = None) -> None:
        super().__init__(redactor or Redactor())
        site: Any = SimpleNamespace(notes=(), run=run)
        self._site = site

    async def _open(self, stack: AsyncExitStack) -> None:
        assert self._began is not None
        self._spool = Spool(Path(self._began.spool))
        self._folders = self._spool.path / ".x"
        self._held = stack.enter_context(ExitStack())


async def until(node: RolloutNode, kind: type[Event]) -> list[Event]:
    """The events up to the first of a kind; a driver acknowledges them by its next poll."""
    seen: list[Event] = []
    while not any(isinstance(event, kind) for event in seen):
        after = seen[-1].number if seen else 0
        answer = await node.answer("poll", to_bytes(Poll(after=after)))
        seen += events_of(answer[1:])
    return seen


REQUEST = make_request(make_task("r"), id="r")


def start(epoch: int = 1) -> bytes:
    """Of a rollout that really runs."""
    task = next(iter(DemoSource().tasks()))
    spec = sandbox_spec(task, load_settings(sets=SETS))
    return to_bytes(Start(epoch=epoch, request=make_request(task, spec=spec, agent="oracle")))


REFUSED: list[tuple[Mapping[str, Any], str]] = [
    ({"versions": {"python": "3.9.1"}}, "and the driver 3.9.1: use the same minor version"),
    ({"versions": {"swe-core": "99.0"}}, "and the driver 99.0: install the same version"),
    ({"versions": {"swe-none": "1.0"}}, "-it has no swe-none, and the driver has 1.0: install the same"),
    ({"settings": {"run": {"agent": "nobody"}}}, "-unknown agent 'nobody'"),
    ({"clock": -3600}, "s ahead of the driver's, and records have its times"),
    ({"clock": 3600}, "s behind the driver's, and records have its times"),
]


async def test_run_that_it_cannot_serve_is_refused(tmp_path: Path) -> None:
    for changed, says in REFUSED:
        given = {**changed, "clock": time.time() + changed.get("clock", 0)}
        async with serving() as node:
            assert says in (await node.answer("begin", begin(tmp_path, **given))).decode()


@pytest.mark.slow
async def test_driver_has_to_begin_first(tmp_path: Path) -> None:
    async with serving() as node:
        for method in ("poll", "start", "cancel", "version", "read"):
            assert await node.answer(method, b"{}") == b"?"
        assert (await node.answer("begin", begin(tmp_path)))[:1] == b"+"
        assert (await node.answer("start", b"nonsense"))[:1] == b"-"


async def test_rollout_is_kept_until_it_is_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    async with serving() as node:
        joined = Joined.model_validate_json((await node.answer("begin", begin(spool.path)))[1:])
        assert (joined.running, joined.offered) == ((), ())
        assert not spool.path.exists(), "a new run directory is still empty"
        await node.answer("start", start())
        seen = await until(node, FinishedEvent)
        phases = [event.phase for event in seen if isinstance(event, PhaseEvent)]
        assert phases == ["open", "prepare", "agent", "export", "grade"]
        (rollout_id,) = spool.ids()
        joined = Joined.model_validate_json((await node.answer("begin", begin(spool.path, epoch=2)))[1:])
        assert joined.offered == (rollout_id,)
        await node.answer("start", start(epoch=1))  # one of before that `begin`, which was late
        assert node._running == set()
        file = await node.answer("read", to_bytes(Read(rollout=rollout_id, offset=0)))
        assert len(file) > 1000
        assert (await node.answer("read", to_bytes(Read(rollout="none", offset=0))))[:1] == b"-"
    async with serving() as again:  # the node has started again
        joined = Joined.model_validate_json((await again.answer("begin", begin(spool.path)))[1:])
        assert joined.offered == (rollout_id,)
        await again.answer("acknowledge", b'{"rollouts": ["%s"]}' % rollout_id.encode())
        assert spool.ids() == []


@pytest.mark.slow
async def test_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spool, "add", Mock(side_effect=OSError(28, "No space left on device")))
    async with begun(tmp_path / "spool") as node:
        await node.answer("start", start())
        (failed,) = [event for event in await until(node, FailedEvent) if isinstance(event, FailedEvent)]
        assert failed.why == f"it cannot write {str(tmp_path / 'spool')!r}: No space left on device"


async def test_older_news_of_the_version_is_ignored(tmp_path: Path) -> None:
    async with begun(tmp_path) as node:
        node._engine = engine = Mock(unfit=None)
        for number, version in ((2, 7), (1, 6), (3, 8)):
            await node.answer("version", to_bytes(SetVersion(number=number, version=version)))
        assert engine.set_policy_version.mock_calls == [call(7), call(8)]


async def test_log_reaches_the_driver_without_secrets(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("a-secret-key-of-this-test")
    async with begun(tmp_path, RolloutNode(redactor)) as node:
        logging.getLogger("swe_core.test").warning("the key is a-secret-key-of-this-test")
        (line,) = [event for event in await until(node, LogEvent) if isinstance(event, LogEvent)][-1:]
        assert "the key is" in line.text
        assert "a-secret" not in line.text


async def test_log_line_with_a_surrogate_does_not_take_the_node_out(tmp_path: Path) -> None:
    async with begun(tmp_path, OpenNode()) as node:
        text = "cannot read " + os.fsdecode(b"caf\xe9.txt")  # not through pytest's own handler: it fails
        _Log(node._log, Redactor()).handle(logging.LogRecord("plugin", 30, "f", 1, text, (), None))
        assert (await node.answer("poll", to_bytes(Poll(after=0))))[:1] == b"+"


async def test_log_of_a_thread_wakes_the_poll(tmp_path: Path) -> None:
    async with begun(tmp_path, OpenNode()) as node, anyio.create_task_group() as polls:
        polls.start_soon(node.answer, "poll", to_bytes(Poll(after=0)))
        await anyio.wait_all_tasks_blocked()
        threading.Thread(target=lambda: node._log(30, "x")).start()


async def test_events_of_other_threads_keep_their_order() -> None:
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


async def test_start_of_a_node_leaves_the_folders_of_one_that_still_ends(tmp_path: Path) -> None:
    """The driver was killed; its node `n` is about to pack a rollout. The next driver's `n` opens."""
    (tmp_path / ".n.old" / "r").mkdir(parents=True)
    (tmp_path / ".n.older").mkdir()
    with locked(tmp_path / ".n.old"):
        _spool(from_bytes(Begin, begin(tmp_path, name="n")))
        assert os.listdir(tmp_path) == [".n.old"]


async def test_late_begin_does_not_make_a_node_ignore_starts(tmp_path: Path) -> None:
    ran: list[str] = []

    async def run(request: Any, *_: object) -> None:
        ran.append(request.id)

    async with begun(tmp_path, OpenNode(run), epoch=2) as node:
        await node.answer("begin", begin(tmp_path, epoch=1))  # its answer was given up; it arrives late
        assert await node.answer("start", to_bytes(Start(epoch=2, request=REQUEST))) == b"+"
        await until(node, FinishedEvent)
        assert ran == ["r"], "the driver waits for it for ever"


async def test_record_of_a_node_has_no_token_of_its_rollout(tmp_path: Path) -> None:
    """As in one process, where `commit` runs while the rollout's tokens are known."""
    redactor = Redactor()

    async def run(request: Any, observer: Any, commit: Any, *_: object) -> None:
        (tmp_path / ".x" / request.id).mkdir(parents=True)
        redactor.add("swe_tok_secret")
        commit(FinishedRollout(make_rollout(id="r", outcome="error", model="swe_tok_secret")))
        redactor.discard("swe_tok_secret")  # as `run_rollout` does

    async with begun(tmp_path, OpenNode(run, redactor)) as node:
        await node.answer("start", to_bytes(Start(epoch=1, request=REQUEST)))
        await until(node, FinishedEvent)
    assert b"swe_tok_secret" not in (tmp_path / "r.tar").read_bytes()


async def test_interrupted_try_does_not_replace_a_finished_one(tmp_path: Path) -> None:
    """Nodes on a host may share a spool: one has finished the rollout, and another has to cancel it."""
    (tmp_path / "r.tar").write_bytes(b"the finished one")

    async def run(request: Any, observer: Any, commit: Any, *_: object) -> None:
        commit(FinishedRollout(make_rollout(id="r", outcome="cancelled", reward=None)))

    async with begun(tmp_path, OpenNode(run)) as node:
        await node._rollout(REQUEST)
    assert (tmp_path / "r.tar").read_bytes() == b"the finished one"
