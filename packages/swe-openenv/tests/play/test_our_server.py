"""Our agents play our own interactive server: the verdicts are those of a local run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..server.serving import serving
from .playground import recording
from .test_play_run import played_by


@pytest.mark.slow
def test_own_interactive_server_is_played_and_grades(tmp_path: Path) -> None:
    replies = ("--agent", "mini", "--engine", "replay", "--recording", str(recording()))
    with serving(tmp_path / "served", ["run.agent=nop"], interactive=True, split="test") as server:
        tasks = ("--task", "demo__memofn-1", "--task", "demo__logweave-1")
        rollouts = played_by(server, tmp_path / "played", *replies, *tasks)
    outcomes = {rollout["task_id"]: rollout["outcome"] for rollout in rollouts}
    # The recorded replies fix one file of two of logweave.
    assert outcomes == {"demo__memofn-1": "resolved", "demo__logweave-1": "unresolved"}
    served = [json.loads(line) for line in (tmp_path / "served" / "rollouts.jsonl").read_text().splitlines()]
    assert {rollout["agent"] for rollout in served} == {"client"}
    graded = sorted(rollout["outcome"] for rollout in served if rollout["outcome"] != "cancelled")
    assert graded == ["resolved", "unresolved"]
