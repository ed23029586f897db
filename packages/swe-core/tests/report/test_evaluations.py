"""Evaluations while training in the report, the page and the lists: apart from the training."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from swe_core.hub.card import card
from swe_core.hub.pushed_run import PushedRun
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.run_list import summary_of
from swe_core.rollout.training_records import EVALUATIONS_FILE, Evaluation
from swe_core.run.regrade import chosen
from swe_core.view.heads import Heads
from swe_core.view.run_lines import RunLine
from swe_testing.records import make_rollout, make_run

from .helpers import lines_of, reported
from .test_summary import rollout


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """One task is trained and never resolved; two are held out, and resolved better and better."""
    run = make_run(tmp_path / "run")
    for number in range(3):
        run.append(rollout(0, number, "unresolved"))
    lines = []
    for step, outcomes in ((0, ("unresolved", "error")), (10, ("resolved", "resolved"))):
        for number, outcome in enumerate(outcomes, 1):
            name = f"held-{number}-eval{step}-0"
            run.append(make_rollout(f"held-{number}", 0, outcome, id=name, evaluation=step))
        resolved, errors = outcomes.count("resolved"), outcomes.count("error")
        line = Evaluation(
            **{"step": step, "version": step + 1, "oldest": step + 1, "newest": step + 3, "rollouts": 2},
            **{"verdicts": 2 - errors, "resolved": resolved, "errors": errors},
            reward=resolved / (2 - errors), finished_at=datetime(2026, 1, 1, tzinfo=UTC),
        )  # fmt: skip
        lines.append(line.model_dump_json() + "\n")
    (run.path / EVALUATIONS_FILE).write_text("".join(lines))
    return run


def test_report_has_a_table_of_evaluations_and_rates_of_the_training_alone(run: RunDirectory) -> None:
    lines = lines_of(run)
    for line in (
        "evaluation at step policy versions resolved of rate errors mean reward",
        "0 1 to 3 0 1 0.0% 1 0",
        "10 11 to 13 2 2 100.0% 0 1",
        "pass@1 0.0% 0.0% to 79.3% 1 3",
    ):
        assert line in lines
    assert [line for line in lines if line.startswith("resolved ")] == ["resolved 0 of 3"]
    said = json.loads(reported(run, "--json").output)
    assert (said["finished"], said["resolved"], said["error"], said["resolved_rate"]) == (3, 0, 0, 0.0)
    assert [(one["step"], one["resolved_rate"]) for one in said["evaluations"]] == [(0, 0.0), (10, 1.0)]
    named = [f"task-0000-{number}" for number in range(3)]
    assert [one.id for one in chosen(run, None)] == named, "grades to compare, unless others are named"


def test_page_has_a_curve_over_the_steps_of_the_evaluated_weights(run: RunDirectory, tmp_path: Path) -> None:
    reported(run, "--html", str(tmp_path / "t.html"))
    text = (tmp_path / "t.html").read_text()
    assert "Evaluations on held-out tasks" in text
    assert "First 0.0%, last 100.0%, best 100.0%." in text
    assert "11 to 13" in text
    assert "<dt>Resolved rate</dt><dd>0.0%</dd>" in text
    assert '"x": [0, 10]' in text or '"x":[0,10]' in text


def test_lists_of_runs_and_cards_count_them_apart(run: RunDirectory) -> None:
    line = summary_of(run)
    assert (line.finished, line.resolved, line.errors) == (3, 0, 0)
    heads = Heads(run.path)
    heads.refresh()
    shown = RunLine.of(heads.all())
    assert (shown.tasks, shown.finished, shown.outcomes) == (1, 3, {"unresolved": 3})
    pushed = PushedRun.of(run).with_shard(run.rollouts())
    text = card("me/rollouts", [pushed], None)
    assert text is not None
    assert "7 rollouts of 3 tasks, 0 of 3 resolved (0.0%)" in text
    assert "4 rollouts with `-eval<step>-` in the id are evaluations while training" in text
