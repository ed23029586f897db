"""Results in trackio, read back by trackio."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage

from swe_core.api.executor import Executor
from swe_core.errors import ConfigError, SweError, UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.runner import Runner
from swe_core.trackers import trackio_tracker
from swe_core.trackers.extensions import tracker_extensions
from swe_core.trackers.names import free_name
from swe_core.trackers.options import TrackOptions
from swe_core.trackers.trackio_tracker import SENT_FILE, TrackioTracker

from ..hub.runs import add, error, rollout

pytestmark = pytest.mark.anyio
PROJECT = "swe-core"


def runner_of(run: RunDirectory) -> Runner:
    return Runner([], cast(Executor, None), None, run, [], 1)


def finish(runner: Runner, *records: Any, **more: Any) -> None:
    """Finish rollouts as the runner does."""
    for record in records:
        add(runner.store, record, **more)
        runner._observer.finished(record)


@asynccontextmanager
async def tracking(run: RunDirectory, **options: Any) -> AsyncIterator[Runner]:
    runner = runner_of(run)
    (tracker,) = tracker_extensions(TrackOptions(to=("trackio",), **options), run.path)
    await tracker.prepare()
    async with tracker.running(runner):
        yield runner


def names(project: str = PROJECT) -> list[str]:
    return [one.name for one in Api().runs(project)]


def logs(name: str = "mine", project: str = PROJECT) -> list[dict[str, Any]]:
    return SQLiteStorage.get_logs(project, name)


def traces(name: str = "mine", project: str = PROJECT) -> list[dict[str, Any]]:
    return SQLiteStorage.get_traces(project, name, sort="step_asc")


def ids(name: str = "mine") -> list[str]:
    return [trace["metadata"]["rollout"] for trace in traces(name)]


async def test_each_rollout_is_a_step_with_its_trace(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "swe_core")
    async with tracking(run) as runner:
        finish(
            runner, rollout("t-0"), rollout("t-1", 1, outcome="unresolved", reward=0.0), error("t-2", "x", 2)
        )
    rates = [(line["step"], line["rollout/resolved_rate"]) for line in logs()]
    assert rates == [(0, 1.0), (1, 0.5), (2, 0.5)]
    assert [line.get("rollout/reward") for line in logs()] == [1.0, 0.0, None]
    assert logs()[2]["rollout/errors_total"] == 1
    assert ids() == ["t-0", "t-1", "t-2"]
    first = traces()[0]
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert first["messages"][1]["tool_calls"][0]["function"]["name"] == "bash"
    assert first["metadata"]["status"] == "resolved"
    assert [span["name"] for span in first["spans"]] == ["turn 0", "turn 1"]
    assert Api().runs(PROJECT)[0].config["tasks"] == "demo"
    assert "project 'swe-core', run 'mine'; to see them: trackio show --project swe-core" in caplog.text
    assert capfd.readouterr().out == ""  # the standard output belongs to the command
    assert not [thread for thread in threading.enumerate() if thread.name == "trackio"]


async def test_resumed_run_sends_only_what_is_missing(run: RunDirectory) -> None:
    async with tracking(run) as runner:
        finish(runner, rollout("t-0"))
    add(run, rollout("t-1", 1))  # finished when the process was killed
    async with tracking(run) as runner:
        finish(runner, rollout("t-2", 2))
    assert names() == ["mine"]
    assert ids() == ["t-0", "t-1", "t-2"]
    assert [line["rollout/finished_total"] for line in logs()] == [1, 2, 3]


async def test_rollouts_that_trackio_had_not_stored_are_sent_again(run: RunDirectory) -> None:
    async with tracking(run) as runner:
        finish(runner, rollout("t-0"), rollout("t-1", 1))
    with SQLiteStorage._get_connection(SQLiteStorage.get_project_db_path(PROJECT)) as database:
        database.execute("DELETE FROM metrics WHERE step = 1")
        database.execute("DELETE FROM traces WHERE step = 1")
        database.commit()
    async with tracking(run):
        pass
    assert ids() == ["t-0", "t-1"]


async def test_rollout_that_ran_again_is_sent_again(run: RunDirectory) -> None:
    async with tracking(run) as runner:
        finish(runner, error("t-0", "it died"))
    again = RunDirectory.resume(run.path, run.redactor, ["error"])
    async with tracking(again) as runner:
        finish(runner, rollout("t-0", 5))
    assert ids() == ["t-0", "t-0"]
    last = logs()[-1]
    assert (last["rollout/finished_total"], last["rollout/errors_total"]) == (1, 0)


async def test_interrupted_rollout_is_not_sent(run: RunDirectory) -> None:
    cut = {"outcome": "cancelled", "reward": None, "grade": None}
    async with tracking(run) as runner:
        finish(runner, rollout("t-0", **cut), rollout("t-1", cancelled_as="stale", **cut))
    assert ids() == ["t-1"]


async def test_new_run_does_not_continue_one_of_its_name(run: RunDirectory) -> None:
    async with tracking(run) as runner:
        finish(runner, rollout("t-0"))
    (run.path / SENT_FILE).unlink()  # as another directory of that name
    async with tracking(run):
        pass
    assert sorted(names()) == ["mine", "mine-2"]
    async with tracking(run) as runner:
        finish(runner, rollout("t-1"))
    assert ids("mine-2") == ["t-0", "t-1"]


async def test_name_in_a_space_is_not_looked_up(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tracking(run) as runner:
        finish(runner, rollout("t-0"))
    assert free_name(TrackOptions(), "mine") == "mine-2"
    assert free_name(TrackOptions(space="me/board"), "mine") == "mine"
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/board")
    assert free_name(TrackOptions(), "mine") == "mine"


async def test_other_project_gets_all_rollouts(run: RunDirectory) -> None:
    async with tracking(run) as runner:
        finish(runner, rollout("t-0"))
    async with tracking(run, project="other", name="theirs") as runner:
        finish(runner, rollout("t-1"))
    assert [trace["metadata"]["rollout"] for trace in traces("theirs", "other")] == ["t-0", "t-1"]


async def test_secrets_are_not_sent(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "the-key-of-this-process")
    async with tracking(run) as runner:
        run.redactor.add("secret-of-the-run")
        failed = error("t-0", "secret-of-the-run is wrong")
        finish(runner, failed, text="the-key-of-this-process and secret-of-the-run")
    (trace,) = traces()
    assert trace["messages"][0]["content"] == "[redacted] and [redacted]"
    assert trace["metadata"]["error"] == "sandbox: [redacted] is wrong"


async def test_rollout_that_cannot_be_read_harms_no_other(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    async with tracking(run) as runner:
        for number in range(2):
            record = rollout(f"t-{number}")
            add(run, record)
            (run.path / "rollouts" / record.id / "turns.jsonl").write_text("{\n")
            runner._observer.finished(record)
        finish(runner, rollout("t-2"))
    assert ids() == ["t-2"]
    assert caplog.text.count("is not a recorded call") == 2  # one for each file
    assert "trackio lacks up to 2 rollouts" in caplog.text
    assert f"swe-core run --resume {run.path}" in caplog.text


async def test_storage_that_fails_is_logged_and_counted(
    run: RunDirectory, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tracking(run) as runner:
        (home / f"{PROJECT}.db").mkdir(parents=True)
        finish(runner, rollout("t-0"), rollout("t-1", 1))
    assert len(run.rollouts()) == 2
    assert "trackio lacks up to 2 rollouts" in caplog.text
    (home / f"{PROJECT}.db").rmdir()
    async with tracking(run):
        pass
    assert ids() == ["t-0", "t-1"]


async def test_event_loop_runs_while_trackio_is_slow(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, may_go_on = threading.Event(), threading.Event()
    send = trackio_tracker.TrackioRun.add

    def slow(self: Any, *arguments: Any) -> None:
        going.set()
        may_go_on.wait()
        send(self, *arguments)

    monkeypatch.setattr(trackio_tracker.TrackioRun, "add", slow)
    async with tracking(run) as runner:
        finish(runner, rollout("t-0"))
        await anyio.to_thread.run_sync(going.wait)
        finish(runner, rollout("t-1"))
        await anyio.lowlevel.checkpoint()
        may_go_on.set()
    assert ids() == ["t-0", "t-1"]


async def test_trackio_that_hangs_keeps_no_run_from_ending(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(trackio_tracker, "LIMIT", 0.2)
    try:
        async with tracking(run) as runner:
            monkeypatch.setattr(trackio_tracker.TrackioRun, "finish", lambda _: hung.wait())
            finish(runner, rollout("t-0"))
        assert "trackio does not answer, so it lacks rollouts" in caplog.text
    finally:
        hung.set()


async def test_trackio_that_hangs_at_the_start_is_an_error(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(trackio_tracker, "LIMIT", 0.2)
    monkeypatch.setattr(trackio_tracker, "TrackioRun", lambda *_: hung.wait())
    try:
        with pytest.raises(ConfigError, match="it did not open a run within"):
            async with tracking(run):
                pass
    finally:
        hung.set()


async def test_error_that_ends_the_run_is_raised_unchanged(run: RunDirectory) -> None:
    async def fail() -> None:
        async with tracking(run) as runner:
            finish(runner, rollout("t-0"))
            raise SweError("the disk is full")

    with pytest.raises(SweError, match="the disk is full"):
        await fail()
    assert ids() == ["t-0"]


async def test_settings_that_trackio_refuses_are_reported_before_the_run(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="trackio cannot be used: ValueError: Project name 'registry-x'"):
        await TrackioTracker(TrackOptions(project="registry-x"), run.path).prepare()
    (run.path / SENT_FILE).write_text("{}\n")
    with pytest.raises(UsageError, match="is damaged"):
        await TrackioTracker(TrackOptions(), run.path).prepare()


async def test_missing_library_is_named_with_its_command(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"which is not installed: pip install 'swe-core\[trackio\]'"):
        await TrackioTracker(TrackOptions(), run.path).prepare()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trackoi", "an evaluation has no tracker 'trackoi'; did you mean 'trackio'?"),
        ("wandb", "an evaluation has no tracker 'wandb'; there is: trackio"),
    ],
)
async def test_unknown_tracker_is_refused(run: RunDirectory, name: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tracker_extensions(TrackOptions(to=(name,)), run.path)
    assert words in str(raised.value)


async def test_run_without_tracker_has_no_extension(run: RunDirectory) -> None:
    assert tracker_extensions(TrackOptions(), run.path) == ()


def test_one_tracker_needs_no_list() -> None:
    assert TrackOptions.model_validate({"to": "trackio"}).to == ("trackio",)
