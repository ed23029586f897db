"""`swe-core run --push-to`, killed and resumed: each rollout is in the data set, once."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from swe_core.rollout.run_directory import RunDirectory
from swe_testing.hf import LocalHF

from .conftest import Command, wait_for
from .warm import Warm

pytestmark = pytest.mark.usefixtures("local_sandbox")

TO = "tester/rollouts"


def rows(hf: LocalHF) -> list[dict[str, Any]]:
    shards = [data for name, data in hf.hub.repo("dataset", TO).files.items() if name.endswith(".parquet")]
    return [row for data in shards for row in pq.read_table(io.BytesIO(data)).to_pylist()]


@pytest.mark.slow
def test_killed_run_pushes(tmp_path: Path, threaded_hf: LocalHF, warm: Warm, command: Command) -> None:
    hf, out = threaded_hf, tmp_path / "run"
    options = ("--tasks", "demo", "--agent", "oracle", "--concurrency", "1", "--limit", "4")
    pushing = ("--push-to", TO, "--set", "push.every=0.1")
    hf.faults.latency = 0.1
    with warm.start(["run", *options, *pushing, "--out", str(out)], hf.environment()) as first:
        wait_for(lambda: hf.calls["hub.commit"] >= 1, first, first.communicate)
        first.send_signal(signal.SIGKILL)  # while a commit is on its way
    hf.faults.latency = 0.0
    done = command("run", "--resume", str(out), env=hf.environment())
    assert done.code == 0, done.stderr
    finished = RunDirectory.open(out).rollouts()
    assert len(finished) == 4
    assert sorted((row["id"], row["started_at"]) for row in rows(hf)) == sorted(
        (rollout.id, rollout.started_at) for rollout in finished
    )
