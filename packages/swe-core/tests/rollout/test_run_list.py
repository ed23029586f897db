"""Runs below a folder: their order and state, and which one a name means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.run_list import find_run, run_paths, state_of, summary_of
from swe_core.system.files import is_locked, locked
from swe_testing.records import make_rollout, make_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(path: Path, hour: int = 1, planned: int | None = 2, **outcomes: str) -> RunDirectory:
    """A run that was started at `hour`, with a rollout of each task in `outcomes`."""
    make_run(path, planned)
    info = json.loads((path / "run.json").read_text())
    info["created_at"] = f"2026-01-01T{hour:02}:00:00Z"
    (path / "run.json").write_text(json.dumps(info))
    run = RunDirectory.open(path)
    for task, outcome in outcomes.items():
        run.append(make_rollout(task, outcome=outcome, agent="pi", model="m"))
    return run


def test_runs_are_in_the_order_of_their_start(tmp_path: Path) -> None:
    for name, hour in (("b", 3), ("a", 12), ("c", 2)):
        run_of(tmp_path / name, hour)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").write_text("")
    assert [path.name for path in run_paths(tmp_path)] == ["c", "b", "a"]
    assert run_paths(tmp_path / "missing") == []


@pytest.mark.parametrize("created", ["tomorrow", "0001-01-01T00:00:00+14:00"])
def test_damaged_run_is_among_them_and_never_the_latest(here: Path, created: str) -> None:
    run_of(here / "runs" / "whole")
    broken = here / "runs" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text(f'{{"created_at": "{created}"}}')
    assert [path.name for path in run_paths(Path("runs"))] == ["whole", "broken"]
    assert find_run("latest") == Path("runs/whole")


def test_state_of_a_run(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], int | None, str, int]] = [
        ({}, 2, "interrupted", 0),
        ({"t1": "resolved", "t2": "cancelled"}, 2, "interrupted", 1),
        ({"t1": "resolved", "t2": "error"}, 2, "finished", 2),
        ({"t1": "resolved"}, None, "ended", 1),
    ]
    for number, (outcomes, planned, state, finished) in enumerate(cases):
        run = run_of(tmp_path / str(number), 1, planned, **outcomes)
        found = summary_of(run)
        assert (found.state, found.finished, found.planned) == (state, finished, planned)
        assert state_of(run) == state
        with locked(run.path):
            assert is_locked(run.path)
            assert state_of(run) == "running"
    run.append(make_rollout("t", outcome="cancelled", cancelled_as="stale"))  # by a worker
    assert summary_of(run).finished == 2
    found = summary_of(RunDirectory.open(tmp_path / "2"))
    assert (found.agent, found.model, found.resolved, found.errors) == ("pi", "m", 1, 1)
    assert summary_of(RunDirectory.open(tmp_path / "0")).agent == ""


def test_name_below_runs_and_latest_are_found(here: Path) -> None:
    run_of(here / "runs" / "old", 1)
    run_of(here / "runs" / "new", 2)
    (here / "old").mkdir()
    assert find_run("old") == Path("runs/old")  # the folder beside is no run
    run_of(here / "old")
    run_of(here / "latest")
    for name, path in (
        ("latest", Path("runs/new")),
        ("./latest", Path("latest")),
        ("new", Path("runs/new")),
        ("old", Path("old")),
        ("runs/old", Path("runs/old")),
        ("runs", Path("runs")),  # the last for `view`
        (str(here / "runs" / "old"), here / "runs" / "old"),
    ):
        assert find_run(name) == path


def test_wrong_name_gets_a_suggestion(here: Path) -> None:
    run_of(here / "runs" / "20260101-agent")
    for text, says in (
        ("20260101-agnet", "no run '20260101-agnet'; did you mean 'runs/20260101-agent'?"),
        ("runs/20260101-agnt", "did you mean 'runs/20260101-agent'?"),
        ("zzz", "no run 'zzz'; 'latest' is 'runs/20260101-agent', and `swe-core runs` lists all"),
        ("a" * 5000, "there is no run 'aaa"),
    ):
        with pytest.raises(UsageError) as caught:
            find_run(text)
        assert says in str(caught.value)


@pytest.mark.usefixtures("here")
def test_without_runs_the_error_says_how_to_get_one() -> None:
    for text, says in (
        ("latest", "there is no run in 'runs': start one with `swe-core run`, or give a run directory"),
        ("x", "there is no run 'x'; give the directory that `swe-core run` printed"),
    ):
        with pytest.raises(UsageError) as caught:
            find_run(text)
        assert str(caught.value) == says
