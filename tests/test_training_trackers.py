"""Experiment trackers of a training: a resume continues the same runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_testing.serving.start import FRUGAL, MODEL, missing

from .conftest import Scripted
from .test_training_input import Policy, options, serving
from .warm import TRAINING, Warm

READ_TRACKIO = """
import json
from trackio import Api
from trackio.sqlite_storage import SQLiteStorage as Storage
print(json.dumps([Storage.get_logs("swe-core", run.name, run_id=run.id) for run in Api().runs("swe-core")]))
"""


@pytest.mark.long
@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_resumed_training_continues_its_runs(tmp_path: Path, tiny_model: Path, scripted: Scripted) -> None:
    out, home = tmp_path / "mine", tmp_path / "trackio"
    environment = {**FRUGAL, "TRACKIO_DIR": str(home)}
    trackers = '"report_to": ["tensorboard", "trackio"], "logging_steps": 1'
    with Warm(TRAINING, environment) as trainer:

        def trained(*args: str) -> None:
            with trainer.start(["run", *args], environment) as program:
                _, said = program.communicate(600)
            assert program.wait() == 0, said
            assert "ERROR" not in said

        with serving(Policy(["done"], **{**scripted.keywords, "models": (MODEL,)})) as url:
            first = [one.replace('"report_to": "none"', trackers) for one in options(url, tiny_model)]
            trained(*first, "--out", str(out))
            trained("--resume", str(out), "--set", "worker.trl.grpo.max_steps=4")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["values"]["loss"]) for line in lines if "loss" in line["values"]]
    assert [step for step, _ in losses] == [1, 2, 3, 4]
    assert in_tensorboard(out / "tensorboard") == [(step, pytest.approx(loss)) for step, loss in losses]
    (values,) = in_trackio(home)
    assert [line["train/global_step"] for line in values if "train/loss" in line] == [1, 2, 3, 4]


def in_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


def in_trackio(home: Path) -> list[list[dict[str, Any]]]:
    """The values of each run. trackio reads the name of its folder at its import."""
    done = subprocess.run(
        [sys.executable, "-c", READ_TRACKIO],
        env={**os.environ, "TRACKIO_DIR": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found
