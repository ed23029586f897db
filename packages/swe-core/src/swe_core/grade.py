"""Grader: patch in, verdict out, on the host and in a fresh sandbox."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from swe_core.sandbox import SandboxProvider, SandboxSpec
from swe_core.task import Task

TestStatus = Literal["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS", "MISSING"]


class Grade(BaseModel):
    """A verdict. `reward` is 1.0 or 0.0; a grader that cannot decide raises `GraderError` instead."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    resolved: bool
    reason: str = Field(default="", description="one sentence when not resolved")
    fail_to_pass: dict[str, TestStatus] = Field(default_factory=dict)
    pass_to_pass: dict[str, TestStatus] = Field(default_factory=dict)
    test_exit_code: int | None = Field(default=None, description="None when no test ran")
    test_seconds: float = Field(default=0.0, ge=0, description="the bare test run, seconds")

    @property
    def reward(self) -> float:
        """1.0 when resolved, else 0.0."""
        return 1.0 if self.resolved else 0.0


class Graded(BaseModel):
    """A grade with the log it came from; the log goes to a file of its own, not into the record."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    grade: Grade
    log: bytes = b""


class Grader(Protocol):
    """Decides whether a patch fixes a task. It sees the patch, never the agent's sandbox."""

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        """Grade `patch` in a sandbox of its own.

        Args:
            patch: A git diff (binary form) against the task's base; empty when nothing was changed.
            provider: Opens the fresh sandbox.
            spec: The task's image, repository and limits, with `network` set to `none` and no assets.
            timeout: Seconds for the test run.

        Raises:
            GraderError: No verdict could be reached, for reasons that are not the patch's.
            SandboxError: The fresh sandbox failed.
        """
        ...
