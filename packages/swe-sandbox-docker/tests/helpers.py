"""What the tests of the Docker sandbox share."""

from __future__ import annotations

from typing import Any

from swe_core.sandbox import Sandbox
from swe_core.task import Task


def task(**changes: Any) -> Task:
    """A task, of which tests change what they are about."""
    given: dict[str, Any] = {
        "instance_id": "t-1",
        "repo": "r",
        "base_commit": "c",
        "problem_statement": "p",
        "patch": "",
        "test_patch": "",
        "fail_to_pass": ("t",),
        "pass_to_pass": (),
        "test_command": "true",
    }
    return Task(**{**given, **changes})


async def sh(sandbox: Sandbox, script: str, code: int = 0, cwd: str | None = None) -> str:
    """Run a script that must end with `code`; returns its stdout."""
    done = await sandbox.exec(["sh", "-c", script], cwd=cwd, timeout=60)
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
    return done.text
