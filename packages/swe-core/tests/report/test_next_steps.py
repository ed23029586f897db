"""The commands that a run ends with."""

from __future__ import annotations

from pathlib import Path

from swe_core.report.next_steps import next_steps
from swe_core.rollout.run_list import State
from swe_testing.records import make_rollout, make_run

MIXED = {"t-10": "error", "t-9": "unresolved", "t-1": "resolved", "t-2": "cancelled"}
RESOLVED, ERROR = {"t": "resolved"}, {"t": "error"}
RESUME = ["the rest", "a rollout", "in a browser"]
AGAIN = ["the rest", "the rest and the errors", "the first failure", "in a browser"]
FAILED = ["the first failure", "in a browser"]


def test_steps_are_those_of_the_state(tmp_path: Path) -> None:
    cases: list[tuple[State, int | None, dict[str, str], list[str]]] = [
        ("finished", 9, MIXED, ["the errors again", *FAILED]),
        ("finished", 9, RESOLVED, ["a rollout", "in a browser"]),
        ("finished", 9, {}, ["in a browser"]),
        ("interrupted", 9, RESOLVED, RESUME),
        ("interrupted", 9, ERROR, AGAIN),
        ("running", 9, ERROR, FAILED),  # it is not resumed
        ("ended", None, ERROR, FAILED),  # errors of a training are not run again
    ]
    for number, (state, planned, outcomes, purposes) in enumerate(cases):
        run = make_run(tmp_path / f"my run {number}", planned)
        rollouts = [make_rollout(task, outcome=outcome) for task, outcome in outcomes.items()]
        found = dict(next_steps(run, rollouts, state))
        assert list(found) == purposes
        assert found.get("the rest") in (None, f"swe-core run --resume '{run.path}'")
        if outcomes == MIXED:  # the first in natural order
            assert found["the first failure"] == f"swe-core show '{run.path}' t-9-0"
        assert found["in a browser"] == f"swe-core view '{run.path}'"
