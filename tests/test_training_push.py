"""A training that pushes is killed, loses its disk, and resumes from the Hub alone."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from swe_testing.hf import LocalHF
from swe_testing.serving.start import FRUGAL, start, stop

from .training import PROGRAM, Training, toy_options

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]

TO = "tester/trained"
GROUP = 4
STEPS = 4
_PATIENCE = 400


@pytest.mark.long
def test_training_resumes_from_the_hub_without_its_disk(
    tmp_path: Path, tiny_model: Path, threaded_hf: LocalHF, server_home: Path
) -> None:
    hf = threaded_hf
    out, again = tmp_path / "run", tmp_path / "restored"
    environment = {**os.environ, **FRUGAL, **hf.environment(), "HF_HUB_OFFLINE": "0"}
    grpo = {
        "num_train_epochs": STEPS,
        "num_generations": GROUP,
        "per_device_train_batch_size": GROUP,
        "save_steps": 2,
    }
    server = start(tiny_model, server_home, os.getpid())
    try:
        options = toy_options(tiny_model, server.url, grpo, tokens=8, letters=2)
        command = [PROGRAM, "run", *options, "--push-to", TO, "--set", "push.every=1", "--out", str(out)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
            end = time.monotonic() + _PATIENCE
            while not pushed(hf) and first.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            first.send_signal(signal.SIGKILL)
            assert first.stderr is not None
            said = first.stderr.read()
        assert pushed(hf), said
        shutil.rmtree(out)
        run(["restore", TO, str(again)], environment)
        done = run(["run", "--resume", str(again)], environment)
    finally:
        stop(server.pid)
    files = Training(0, "", "", again)
    assert files.summary["steps"] == STEPS
    assert files.summary["tokens"]["unaccounted"] == 0, files.summary
    assert files.report()["ledger"]["balanced"]
    model = hf.hub.repo("model", TO).files
    assert "model.safetensors" in model
    assert model["last-checkpoint/model.safetensors"]
    rows = [
        row
        for name, data in hf.hub.repo("dataset", TO).files.items()
        if name.endswith(".parquet")
        for row in pq.read_table(io.BytesIO(data)).to_pylist()
    ]
    assert {rollout.id for rollout in files.rollouts() if rollout.reward is not None} <= {
        row["id"] for row in rows
    }
    assert len(rows) == len({(row["id"], row["started_at"]) for row in rows})
    assert all(row["chains"] for row in rows if row["reward"] is not None)
    assert len({row["run"] for row in rows}) == 1
    everything = b"".join([*model.values(), *hf.hub.repo("dataset", TO).files.values()]) + str(rows).encode()
    assert hf.token.encode() not in everything
    assert "Traceback" not in done.stderr


def pushed(hf: LocalHF) -> bool:
    """Whether a checkpoint is there."""
    repo = hf.hub.repos.get(("model", TO))
    return repo is not None and "last-checkpoint/model.safetensors" in repo.files


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=_PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done
