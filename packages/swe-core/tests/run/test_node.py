"""A node serves one run, refuses what it cannot serve in a sentence, and keeps what it has finished."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import anyio
import pytest

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
    to_bytes,
)
from swe_core.rollout.nodes.spool import Spool
from swe_core.run.node import RolloutNode
from swe_core.run.plan import sandbox_spec
from swe_core.run.settings import load_settings
from swe_core.system.redaction import Redactor
from swe_testing.records import make_request

PATIENCE = 60.0
SETS = ("run.agent=oracle", "run.plugins=[]", "sandbox.local.unisolated=true", "run.tasks=demo")
pytestmark = pytest.mark.anyio


def begin(spool: Path, **changed: Any) -> bytes:
    """A driver of this machine, with the same packages."""
    known: dict[str, Any] = {
        "name": "one", "settings": load_settings(sets=SETS).model_dump(mode="json"),
        "versions": {"python": platform.python_version()}, "directory": None, "spool": str(spool),
        "clock": time.time(), "epoch": 1, "version": None, "without": (),
    }  # fmt: skip
    return to_bytes(Begin(**{**known, **changed}))


@asynccontextmanager
async def serving(redactor: Redactor | None = None) -> AsyncIterator[RolloutNode]:
    node = RolloutNode(redactor or Redactor())
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.run)
            yield node
            node.stop()


async def until(node: RolloutNode, kind: type[Event]) -> list[Event]:
    """The events up to the first of a kind; a driver acknowledges them by its next poll."""
    seen: list[Event] = []
    while not any(isinstance(event, kind) for event in seen):
        after = seen[-1].number if seen else 0
        answer = await node.answer("poll", to_bytes(Poll(after=after)))
        seen += events_of(answer[1:])
    return seen


def start(epoch: int = 1) -> bytes:
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
    async with serving() as node:
        await node.answer("begin", begin(tmp_path / "spool"))
        await node.answer("start", start())
        (failed,) = [event for event in await until(node, FailedEvent) if isinstance(event, FailedEvent)]
        assert failed.why == f"it cannot write {str(tmp_path / 'spool')!r}: No space left on device"


async def test_older_news_of_the_version_is_ignored(tmp_path: Path) -> None:
    async with serving() as node:
        await node.answer("begin", begin(tmp_path))
        node._engine = engine = Mock(unfit=None)
        for number, version in ((2, 7), (1, 6), (3, 8)):
            await node.answer("version", to_bytes(SetVersion(number=number, version=version)))
        assert engine.set_policy_version.mock_calls == [call(7), call(8)]


async def test_log_reaches_the_driver_without_secrets(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.add("a-secret-key-of-this-test")
    async with serving(redactor) as node:
        await node.answer("begin", begin(tmp_path))
        logging.getLogger("swe_core.test").warning("the key is a-secret-key-of-this-test")
        (line,) = [event for event in await until(node, LogEvent) if isinstance(event, LogEvent)][-1:]
        assert "the key is" in line.text
        assert "a-secret" not in line.text
