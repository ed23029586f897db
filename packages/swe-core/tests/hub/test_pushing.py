"""Pushing beside a run: in the background and at the end, without delaying the run."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from swe_core.api.executor import Executor
from swe_core.errors import SweError
from swe_core.hub.extensions import hub_extensions
from swe_core.hub.options import PushOptions
from swe_core.hub.push import HubPush, push_run
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.runner import Runner
from swe_testing.hf import LocalHF
from swe_testing.waiting import until

from .runs import add, ids_of, rollout, rows_of

TO = "tester/rollouts"


def ids(hf: LocalHF) -> list[str]:
    return ids_of(hf.hub.repo("dataset", TO))


def finish(runner: Runner, number: int) -> None:
    """Finish a rollout as the runner does."""
    record = rollout(f"t-{number}", number)
    add(runner.store, record)
    runner._observer.finished(record)


async def opened_push(every: float) -> HubPush:
    (push,) = hub_extensions(PushOptions(to=TO, every=every))
    await push.prepare()
    return push


@asynccontextmanager
async def pushing(runner: Runner, every: float) -> AsyncIterator[None]:
    async with (await opened_push(every)).running(runner):
        yield


@pytest.fixture
def runner(run: RunDirectory) -> Runner:
    return Runner([], cast(Executor, None), None, run, [], 1)


async def test_rollouts_are_pushed_during_and_after_the_run(
    hf: LocalHF, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    async with pushing(runner, 0.01):
        finish(runner, 0)
        await until(lambda: hf.calls["hub.commit"] > 0 and ids(hf) == ["t-0"])
        finish(runner, 1)
        await until(lambda: ids(hf) == ["t-0", "t-1"])
        finish(runner, 2)
    assert ids(hf) == ["t-0", "t-1", "t-2"]
    assert f"pushed 3 rollouts to {hf.origin}/datasets/{TO}" in caplog.text


async def test_commits_keep_an_interval(hf: LocalHF, runner: Runner) -> None:
    assert hub_extensions(PushOptions()) == ()
    async with pushing(runner, 3600):
        for number in range(5):
            finish(runner, number)
        await anyio.sleep(0.1)
        assert hf.calls["hub.commit"] == 0
    assert (hf.calls["hub.commit"], len(ids(hf))) == (1, 5)


async def test_unavailable_hub_does_not_fail_the_run(
    hf: LocalHF, run: RunDirectory, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    hf.faults.plan("hub.create", *[503] * 3)
    opened = await opened_push(0.01)
    assert "the run continues, and the push tries again" in caplog.text
    hf.faults.routes, hf.faults.failing, hf.faults.statuses = ("hub.commit",), 1.0, (500,)
    async with opened.running(runner):
        finish(runner, 0)
        await until(lambda: hf.calls["hub.commit"] > 3)
    assert "up to 1 rollout is not pushed; the run directory has them" in caplog.text
    assert f"swe-core push {run.path} --to {TO}" in caplog.text
    hf.faults.failing = 0.0
    assert (await anyio.to_thread.run_sync(push_run, run, PushOptions(to=TO))).new == 1


async def test_error_that_ends_the_run_is_raised_unchanged(hf: LocalHF, runner: Runner) -> None:
    async def fail(runner: Runner) -> None:
        async with pushing(runner, 3600):
            finish(runner, 0)
            raise SweError("the disk is full")

    with pytest.raises(SweError, match="the disk is full"):
        await fail(runner)
    assert ids(hf) == ["t-0"]


async def test_run_does_not_wait_for_a_push(hf: LocalHF, runner: Runner) -> None:
    opened = await opened_push(0.001)
    hf.faults.latency = 0.5
    async with opened.running(runner):
        finish(runner, 0)
        await until(lambda: hf.calls["hub.commit"] + hf.calls["hub.validate"] > 0)
        with anyio.fail_after(5):
            finish(runner, 1)  # in mid-push
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
        hf.faults.latency = 0.0
    assert ids(hf) == ["t-0", "t-1"]
    assert not [thread for thread in threading.enumerate() if thread.name == "push"]


async def test_secrets_known_to_the_run_only_are_redacted(hf: LocalHF, runner: Runner) -> None:
    async with pushing(runner, 3600):
        runner.store.redactor.add("of-the-sandbox-alone")
        record = rollout("t-0")
        add(runner.store, record, patch=b"+ of-the-sandbox-alone\n")
        runner._observer.finished(record)
        runner.store.redactor.discard("of-the-sandbox-alone")
    assert rows_of(hf.hub.repo("dataset", TO))[0]["patch"] == "+ [redacted]\n"
