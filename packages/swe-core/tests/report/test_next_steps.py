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


RESUME = ["the rest", "a rollout", "in a browser"]
AGAIN = ["the rest", "the rest and the errors", "the first failure", "in a browser"]
FAILED = ["the first failure", "in a browser"]


@pytest.mark.parametrize(
    ("state", "planned", "outcomes", "purposes"),
    [
        ("finished", 9, {"t": "resolved"}, ["a rollout", "in a browser"]),
        ("finished", 9, {}, ["in a browser"]),
        ("interrupted", 9, {"t": "resolved"}, RESUME),
        ("interrupted", 9, {"t": "error"}, AGAIN),
        ("running", 9, {"t": "error"}, FAILED),  # it is not resumed
        ("ended", None, {"t": "error"}, FAILED),  # errors of a training are not run again
    ],
)
def test_steps_are_those_of_the_state(
    tmp_path: Path, state: State, planned: int | None, outcomes: dict[str, str], purposes: list[str]
) -> None:
    run = tmp_path / "my run"
    found = steps(run, state, planned, **outcomes)
    assert list(found) == purposes
    assert found.get("the rest") in (None, f"swe-core run --resume '{run}'")
    assert found["in a browser"] == f"swe-core view '{run}'"
