"""`swe-core runs`, and a run by its name in the other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swe_core.cli.report import report
from swe_core.cli.runs import runs
from swe_core.cli.show import show
from swe_testing.records import make_rollout, make_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two(here: Path) -> Path:
    """Two runs: one that is finished and one that was interrupted."""
    make_run(here / "runs" / "first", 1).append(make_rollout("task-1", agent="pi\x1b[2J", model="my-model"))
    make_run(here / "runs" / "second", 3).append(make_rollout("task-1", outcome="error", reward=None))
    return here / "runs"


def listed(*args: str) -> Result:
    return CliRunner().invoke(runs, list(args), catch_exceptions=False)


@pytest.mark.usefixtures("two")
def test_runs_prints_a_line_for_each_run_the_newest_last() -> None:
    head, first, second = listed().stdout.splitlines()
    assert " ".join(head.split()) == "run started agent model tasks finished resolved errors state"
    assert first.split()[3:] == ["pi", "my-model", "0", "1", "of", "1", "1", "0", "finished"]
    assert second.split()[0] == "second"
    assert second.split()[-6:] == ["1", "of", "3", "0", "1", "interrupted"]


def test_runs_as_json(two: Path) -> None:
    first, second = json.loads(listed("--json").stdout)
    assert first.pop("started").startswith("20")
    assert first == {
        "name": "first", "path": "runs/first", "agent": "pi\x1b[2J", "model": "my-model", "tasks": 0,
        "finished": 1, "planned": 1, "resolved": 1, "errors": 0, "state": "finished",
    }  # fmt: skip
    assert second["state"] == "interrupted"
    assert [run["path"] for run in json.loads(listed(str(two), "--json").stdout)] == [
        str(two / "first"), str(two / "second"),
    ]  # fmt: skip
    assert len(json.loads(listed(str(two / "first"), "--json").stdout)) == 1


def test_damaged_run_is_left_out_with_a_note(two: Path) -> None:
    (two / "first" / "rollouts.jsonl").write_text("{}\n")
    done = listed("--json")
    assert [run["name"] for run in json.loads(done.stdout)] == ["second"]
    assert done.stderr == "Note: left out: line 1 of 'runs/first/rollouts.jsonl' is not a finished rollout\n"


@pytest.mark.usefixtures("here")
def test_without_runs_the_command_says_how_to_start_one() -> None:
    assert listed().stdout == "There is no run in 'runs'. `swe-core run` starts one.\n"
    assert listed("--json").stdout.strip() == "[]"
    with pytest.raises(Exception, match="'nowhere' is no folder"):
        listed("nowhere")


@pytest.mark.usefixtures("two")
def test_commands_take_a_run_by_its_name() -> None:
    for name in ("latest", "second", "runs/second"):
        for command in (report, show):
            assert "runs/second" in CliRunner().invoke(command, [name], catch_exceptions=False).stdout
