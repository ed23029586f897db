"""Minimal tasks, runs, requests, turns and records for tests. Public API for authors."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from swe_core.api.limits import Limits
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.sandbox import SandboxSpec
from swe_core.api.task import Task
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor


def make_task(name: str = "t-1", **fields: Any) -> Task:
    """Return a task without image and patches."""
    known = {
        "instance_id": name, "repo": "r", "base_commit": "HEAD", "problem_statement": "p", "patch": "",
        "test_patch": "", "fail_to_pass": ("t",), "pass_to_pass": (), "test_command": "true",
    }  # fmt: skip
    return Task(**{**known, **fields})


def make_run(path: Path, planned: int | None = None) -> RunDirectory:
    """Make a run directory with minimal metadata."""
    return RunDirectory.create(path, new_run_info({}, {}, planned, []), Redactor())


def make_turn(index: int = 0, **fields: Any) -> Turn:
    """Return an LLM call of now, without a reply."""
    known = {
        "index": index, "started_at": datetime.now(UTC), "seconds": 0.0, "kept": 0, "messages": [],
        "params": {}, "reply": None,
    }  # fmt: skip
    return Turn(**{**known, **fields})


def make_request(task: Task, **fields: Any) -> RolloutRequest:
    """Return the request of the first attempt at a task, in a default sandbox."""
    known = {
        "id": f"{task.instance_id}-0", "task": task, "attempt": 0, "agent": "a", "sandbox": "s",
        "engine": "e", "model": "m", "spec": SandboxSpec(), "limits": Limits(),
    }  # fmt: skip
    return RolloutRequest(**{**known, **fields})


def make_rollout(task: str = "t", attempt: int = 0, outcome: str = "resolved", **fields: Any) -> Rollout:
    """Return a record of now, of one second; its reward is that of its outcome."""
    known = {
        "id": f"{task}-{attempt}", "task_id": task, "attempt": attempt, "agent": "a", "sandbox": "s",
        "engine": "e", "model": "m", "outcome": outcome, "seconds": 1.0, "started_at": datetime.now(UTC),
        "reward": {"resolved": 1.0, "unresolved": 0.0}.get(outcome),
    }  # fmt: skip
    return Rollout(**{**known, **fields})
