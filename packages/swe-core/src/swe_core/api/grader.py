"""Grader: patch in, verdict out, on the host and in a fresh sandbox."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task, TestStatus

TamperKind = Literal[
    "tests",  # a file of the task's own tests, or one that they are built on
    "runner-config",  # conftest.py, pytest.ini, the pytest part of setup.cfg, tox.ini, pyproject.toml
    "shadow",  # a module or plugin in the place of the test runner's, Python's or the interpreter's start-up
    "attributes",  # .gitattributes
    "symlink",  # a link that leads out of the repository or stands in the way of a test file
    "report",  # what the test run said of itself is contradicted by what the host saw
]


class Tampering(BaseModel):
    """Something of a patch that could have changed the verdict without changing the code under test.

    An honest patch may do such things too (it adds tests): they have no effect on the verdict, either way.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: TamperKind
    path: str = Field(description="in the repository; for `report` the test's id, or empty")
    done: str = Field(description="one sentence: what became of it")


class Suspicion(BaseModel):
    """A construct that a patch adds, that honest product code seldom has and that cheats are made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: str = Field(description="what it could serve for, such as `frame access`")
    name: str = Field(description="what is written there, such as `_getframe`")
    path: str = Field(description="in the repository")
    line: int = Field(ge=0, description="from 1; 0 where it has none")


class Hashes(BaseModel):
    """SHA-256 (hex) of what a verdict was reached from; None where there was none."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    task: str = Field(description="`Task.digest`")
    patch: str = Field(description="the patch, byte for byte")
    tests: str | None = Field(default=None, description="the test files as they were run")
    tree: str | None = Field(default=None, description="git id of the whole graded work tree")
    log: str | None = Field(default=None, description="the test log as it is kept")


class Grade(BaseModel):
    """A verdict. `reward` is 1.0 or 0.0; a grader that cannot decide raises `GraderError` instead."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    resolved: bool
    reason: str = Field(default="", description="one sentence when not resolved")
    fail_to_pass: dict[str, TestStatus] = Field(default_factory=dict)
    pass_to_pass: dict[str, TestStatus] = Field(default_factory=dict)
    test_exit_code: int | None = Field(default=None, description="None when no test ran")
    test_seconds: float = Field(default=0.0, ge=0, description="the bare test run, seconds")
    channel: Literal["reporter", "log"] | None = Field(
        default=None, description="what the statuses come from; None when no test ran"
    )
    applied_with: str | None = Field(default=None, description="what applied the patch, such as `git apply`")
    tampering: tuple[Tampering, ...] = ()
    suspicious: tuple[Suspicion, ...] = ()
    unchecked: str = Field(
        default="",
        description="why nobody can say whether the repository was at base_commit; empty where it was",
    )
    hashes: Hashes | None = None
    image_id: str | None = Field(default=None, description="`Sandbox.image_id` of the grading sandbox")

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
