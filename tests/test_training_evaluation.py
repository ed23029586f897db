"""Evaluations while training, whole: held-out tasks in the local sandbox, TRL's trainer, a real server."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from swe_core.rollout.training_records import read_evaluations
from swe_testing.serving.start import FRUGAL, TokenServer

from .conftest import reported
from .toy_reward import HELD_OUT
from .training import Training, toy_options, train
from .warm import Warm

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]

STEPS = 5


def evaluated(done: Training, step: int) -> set[str]:
    """The tasks with an attempt of that evaluation that has a verdict."""
    return {one.task_id for one in done.rollouts() if one.evaluation == step and one.reward is not None}


def test_training_evaluates_its_first_and_its_last_weights_and_some_between(
    tmp_path: Path, tiny_model: Path, lent_server: TokenServer, warm_trainer: Warm
) -> None:
    grpo = {
        "max_steps": STEPS,
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "weight_sync_steps": 2,  # so the last weights are sent for their evaluation alone
        "save_steps": STEPS,
    }
    options = toy_options(tiny_model, lent_server.url, grpo, tokens=8, letters=2)
    evaluation = ["--eval-tasks", "held-out", "--eval-every", "2", "--set", "worker.trl.eval_attempts=2"]
    out = tmp_path / "run"
    done = train(out, *options, *evaluation, warm=warm_trainer)
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = read_evaluations(out)
    assert [line.step for line in lines] == [0, 2, 4, STEPS]
    assert {(line.rollouts, line.errors, line.verdicts) for line in lines} == {(4, 0, 4)}
    assert lines[0].oldest == 1
    last = lines[-1]
    assert last.oldest == last.newest == last.version == done.announced() == 4
    for line in lines:
        assert evaluated(done, line.step) == set(HELD_OUT)
    # Nothing of them is trained, and all tokens are accounted for.
    trained = {row.rollout_id for row in done.rows().values()}
    assert not any(rollout.id in trained for rollout in done.rollouts() if rollout.evaluation is not None)
    tokens = done.summary["tokens"]
    assert tokens["unaccounted"] == 0
    assert tokens["dropped"]["evaluation"] == sum(
        rollout.ledger.sampled
        for rollout in done.rollouts()
        if rollout.evaluation is not None and rollout.ledger
    )
    # The trainer's log and the report have them.
    lines_before = len(done.log())
    logged = [line["values"] for line in done.log() if "eval/resolved_rate" in line["values"]]
    assert [values["eval/step"] for values in logged] == [0, 2, 4, STEPS]
    assert logged[-1]["eval/rollouts"] == 4
    assert logged[-1]["eval/resolved_rate"] == pytest.approx(last.resolved / 4)
    report = done.report()
    assert report["ledger"]["balanced"]
    assert [one["step"] for one in report["evaluations"]] == [0, 2, 4, STEPS]
    assert {task["task_id"] for task in report["tasks"]} == {"demo__memofn-1"}
    assert "evaluation at step" in reported(out)

    # A kill after the last step left no evaluation of the last weights.
    with closing(sqlite3.connect(out / "train.sqlite")) as database, database:
        database.execute("UPDATE evaluations SET state = 'lost' WHERE step = ?", (STEPS,))
    resumed = _resume(out, warm_trainer)
    assert resumed.code == 0, resumed.stderr
    again = read_evaluations(out)
    assert [line.step for line in again] == [0, 2, 4, STEPS]
    assert again[:-1] == lines[:-1]
    assert again[-1].version > last.version
    assert again[-1].oldest == again[-1].newest == again[-1].version
    assert len(resumed.log()) == lines_before + 1
    assert resumed.summary["steps"] == STEPS
    assert resumed.summary["tokens"]["unaccounted"] == 0

    # Complete: nothing is left to do.
    before = len(resumed.rollouts())
    assert _resume(out, warm_trainer).code == 0
    assert len(resumed.rollouts()) == before
    assert read_evaluations(out) == again

    other = _resume(out, warm_trainer, "--eval-tasks", "demo", "--task", "demo__memofn-1")
    assert other.code == 2
    assert "trains on (demo__memofn-1)" in other.stderr


def _resume(out: Path, warm: Warm, *args: str) -> Training:
    with warm.start(["run", "--resume", str(out), *args], FRUGAL) as program:
        said = program.communicate(600)
    return Training(program.wait(), *said, out)
