"""The commands that a run ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.report.next_steps import next_steps
from swe_core.rollout.run_list import State
from swe_testing.records import make_rollout, make_run


def steps(path: Path, state: State, planned: int | None = 9, **outcomes: str) -> dict[str, str]:
    """Purpose → command, for a run whose attempts have these outcomes, by task."""
    run = make_run(path, planned)
    rollouts = [make_rollout(task, outcome=outcome) for task, outcome in outcomes.items()]
    return dict(next_steps(run, rollouts, state))


def test_finished_run_shows_its_first_failure_in_natural_order(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcomes = {"t-10": "error", "t-9": "unresolved", "t-1": "resolved", "t-2": "cancelled"}
    assert steps(run, "finished", **outcomes) == {
        "the errors again": f"swe-core run --resume {run} --retry-errors",
        "the first failure": f"swe-core show {run} t-9-0",
        "in a browser": f"swe-core view {run}",
    }


def test_run_without_failures_shows_a_rollout(tmp_path: Path) -> None:
    assert list(steps(tmp_path / "run", "finished", t="resolved")) == ["a rollout", "in a browser"]
    assert list(steps(tmp_path / "empty", "finished")) == ["in a browser"]


@pytest.mark.parametrize(
    ("outcome", "purposes"),
    [
        ("resolved", ["the rest", "a rollout", "in a browser"]),
        ("error", ["the rest", "the rest and the errors", "the first failure", "in a browser"]),
    ],
)
def test_interrupted_run_can_be_resumed(tmp_path: Path, outcome: str, purposes: list[str]) -> None:
    found = steps(tmp_path / "run", "interrupted", t=outcome)
    assert list(found) == purposes
    assert found["the rest"] == f"swe-core run --resume {tmp_path / 'run'}"


def test_running_run_is_not_resumed(tmp_path: Path) -> None:
    assert list(steps(tmp_path / "run", "running", t="error")) == ["the first failure", "in a browser"]


def test_errors_of_a_training_are_not_run_again(tmp_path: Path) -> None:
    assert list(steps(tmp_path / "run", "ended", None, t="error")) == ["the first failure", "in a browser"]


def test_path_is_quoted_for_the_shell(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    assert steps(run, "finished")["in a browser"] == f"swe-core view '{run}'"
