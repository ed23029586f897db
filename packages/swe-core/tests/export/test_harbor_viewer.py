"""Trajectories, read back by Harbor's own validator and by the server of `harbor view`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from swe_core.bundles.python import Python
from swe_core.errors import AgentError
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.fetched import fetched

from ..hub.runs import add, error, rollout
from .conftest import Export

HARBOR = "0.26.0"
READER = Path(__file__).with_name("harbor_reads.py")

pytestmark = pytest.mark.long  # it installs Harbor


@pytest.fixture(scope="module")
def python() -> Path:
    """Harbor needs a newer Python than we do."""
    try:
        return Python(("3.12", "3.13")).find("harbor").program
    except AgentError as absent:
        pytest.skip(str(absent))


def read(python: Path, folder: Path) -> dict[str, Any]:
    """What Harbor finds in a folder."""
    env = {**os.environ, "PYTHONPATH": str(fetched("harbor", HARBOR, python))}
    ended = subprocess.run([python, READER, folder], capture_output=True, text=True, env=env, timeout=120)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["invalid"] == {}
    return found


def test_run_is_a_job_and_a_rollout_a_trial(run: RunDirectory, exported: Export, python: Path) -> None:
    add(run, rollout("a-0", phases={"open": 1.0, "agent": 5.0, "grade": 2.0}))
    add(run, rollout("a-1", outcome="unresolved", reward=0.0), patch=None)
    (run.path / "rollouts" / "a-1" / "test.log").write_text("1 failed\n")
    run.folder("b-0").close()
    run.append(error("b-0", "no memory"))
    found = read(python, exported(run, "atif"))
    (job,) = found["jobs"]
    assert (job["n_total_trials"], job["n_errored_trials"], job["agents"]) == (3, 1, ["mini"])
    assert (job["total_input_tokens"], job["total_output_tokens"]) == (21, 9)
    trials = found["trials"]
    assert {name: trial["reward"] for name, trial in trials.items()} == {"a-0": 1.0, "a-1": 0.0, "b-0": None}
    assert trials["b-0"]["error_type"] == "SandboxDied"
    assert [trials[name]["artifacts"] for name in ("a-0", "a-1")] == [["patch.diff"], []]
    assert trials["a-1"]["output"] == "1 failed\n"
    assert trials["a-0"]["result"]["agent_execution"]["started_at"].startswith("2026-01-02T03:04:06")
    steps = trials["a-0"]["trajectory"]["steps"]
    assert [step["message"] for step in steps][::2] == ["look", "Done."]
    assert steps[1]["tool_calls"][0]["function_name"] == "bash"
    assert {task["task_name"]: (task["n_trials"], task["avg_reward"]) for task in found["tasks"]} == {
        "a": (2, 0.5),
        "b": (1, None),  # an error is no reward of 0
    }
