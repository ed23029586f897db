"""Tasks and records of rollouts, for tests that care for few of their fields; public API for authors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from swe_core.record import Rollout
from swe_core.task import Task


def make_task(name: str = "t-1", **fields: Any) -> Task:
    """A task that has no image and no patches."""
    known = {
        "instance_id": name, "repo": "r", "base_commit": "HEAD", "problem_statement": "p", "patch": "",
        "test_patch": "", "fail_to_pass": ("t",), "pass_to_pass": (), "test_command": "true",
    }  # fmt: skip
    return Task(**{**known, **fields})


def make_rollout(task: str = "t", attempt: int = 0, outcome: str = "resolved", **fields: Any) -> Rollout:
    """A record of now, of one second; its reward is that of its outcome."""
    known = {
        "id": f"{task}-{attempt}", "task_id": task, "attempt": attempt, "agent": "a", "sandbox": "s",
        "engine": "e", "model": "m", "outcome": outcome, "seconds": 1.0, "started_at": datetime.now(UTC),
        "reward": {"resolved": 1.0, "unresolved": 0.0}.get(outcome),
    }  # fmt: skip
    return Rollout(**{**known, **fields})
