"""Experiment trackers: what evaluations and trainings send them, read back by their own libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swe_core.hub.pushed_run import run_name
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.serving.start import FRUGAL, MODEL, missing

from .conftest import Command, Scripted, wait_for
from .test_training_input import Policy, options, serving
from .warm import TRAINING, Warm

pytestmark = pytest.mark.usefixtures("local_sandbox")

TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
QUIET = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}
"""wandb sends nothing, and trackio asks the Hub for no name."""
READ_TRACKIO = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage as Storage
print(json.dumps({
    run.name: [
        Storage.get_logs("swe-core", run.name, run_id=run.id),
        Storage.get_traces("swe-core", run.name, run_id=run.id, sort="step_asc"),
    ]
    for run in Api().runs("swe-core")
}))
"""


def in_trackio(home: Path) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Values and traces of each run, as trackio has them. It reads the name of its folder at its import."""
    environment = {**os.environ, "TRACKIO_DIR": str(home)}
    command = [sys.executable, "-c", READ_TRACKIO]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_killed_evaluation_resumes_its_run_in_trackio(tmp_path: Path, warm: Warm, command: Command) -> None:
    home, out = tmp_path / "trackio", tmp_path / "mine"
    env = {"TRACKIO_DIR": str(home), **QUIET}
    tasks = ("--tasks", "demo", "--agent", "oracle", "--concurrency", "1", "--limit", "3")
    with warm.start(["run", *tasks, "--track", "trackio", "--out", str(out)], env) as first:
        wait_for(lambda: (out / "trackio.jsonl").exists(), first, first.communicate)
        first.send_signal(signal.SIGKILL)
    done = command("run", "--resume", str(out), "--json", env=env)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["resolved"] == 3
    ((values, traces),) = in_trackio(home).values()
    finished = sorted(rollout.id for rollout in RunDirectory.open(out).rollouts())
    assert sorted(trace["metadata"]["rollout"] for trace in traces) == finished
    assert sorted(line["rollout/finished_total"] for line in values) == [1, 2, 3]
    assert {line["rollout/resolved_rate"] for line in values} == {1.0}


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Warm]:
    """Runs the program in processes that have TRL imported, and with it trackio."""
    with Warm(TRAINING, {**FRUGAL, **QUIET, "TRACKIO_DIR": str(tmp_path / "trackio")}) as warm:
        yield warm


def trained(trainer: Warm, *args: str) -> str:
    """What a training says on stderr that comes to its end."""
    with trainer.start(["run", *args], {**FRUGAL, **QUIET}) as program:
        _, said = program.communicate(600)
    assert program.wait() == 0, said
    return said


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_resumed_training_continues_its_runs_in_all_trackers(
    tmp_path: Path, tiny_model: Path, scripted: Scripted, trainer: Warm
) -> None:
    out = tmp_path / "mine"
    flags = [flag for tracker in TRACKERS for flag in ("--track", tracker)]
    with serving(Policy(["done"], **{**scripted.keywords, "models": (MODEL,)})) as url:
        trained(trainer, *without_report_to(options(url, tiny_model, *flags)), "--out", str(out))
        more = ("--set", "worker.trl.grpo.max_steps=4")
        said = trained(trainer, "--resume", str(out), *more)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [
        (line["step"], pytest.approx(line["values"]["loss"])) for line in lines if "loss" in line["values"]
    ]
    assert [step for step, _ in losses] == [1, 2, 3, 4]
    ((trackio, _),) = in_trackio(tmp_path / "trackio").values()
    steps = [line for line in trackio if "train/loss" in line]
    assert [(line["train/global_step"], line["train/loss"]) for line in steps] == losses
    assert in_tensorboard(out / "tensorboard") == losses
    assert in_mlflow(out / "mlflow.db") == ("mine", losses)
    run_id = run_name(RunDirectory.open(out).info)
    parts = sorted((out / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert len(parts) == 2  # of one run, which `wandb sync` joins
    for part in parts:
        assert b"train/loss" in part.read_bytes()
        assert b"swe-core" in part.read_bytes()
    assert "ERROR" not in said


def without_report_to(arguments: list[str]) -> list[str]:
    """The arguments, in which no setting of TRL says that there are no trackers."""
    return [argument.replace('"report_to": "none"', '"logging_steps": 1') for argument in arguments]


def in_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


def in_mlflow(file: Path) -> tuple[str, list[tuple[int, float]]]:
    """Name and losses of the only run, read by a process of its own: MLflow's database warns of itself."""
    script = (
        "import json, sys; from mlflow import MlflowClient\n"
        "client = MlflowClient(f'sqlite:///{sys.argv[1]}')\n"
        "experiment = client.get_experiment_by_name('swe-core')\n"
        "(run,) = client.search_runs([experiment.experiment_id])\n"
        "history = client.get_metric_history(run.info.run_id, 'loss')\n"
        "print(json.dumps([run.info.run_name, [[metric.step, metric.value] for metric in history]]))"
    )
    command = [sys.executable, "-c", script, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    name, history = json.loads(done.stdout)
    return name, sorted(map(tuple, history))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_unknown_tracker_of_a_training_is_refused_before_anything_is_created(
    tmp_path: Path, tiny_model: Path, warm_trainer: Warm
) -> None:
    out = tmp_path / "run"
    arguments = without_report_to(options("http://127.0.0.1:9", tiny_model, "--track", "tensorbord"))
    with warm_trainer.start(["run", *arguments, "--out", str(out)], FRUGAL) as program:
        _, said = program.communicate(300)
    assert program.wait() == 2
    assert said.endswith("a training has no tracker 'tensorbord'; did you mean 'tensorboard'?\n")
    assert not out.exists()
