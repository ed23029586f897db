"""Grader: grades a patch in a fresh sandbox; Grade, Tampering, Suspicion."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task, TestStatus

TamperKind = Literal[
    "tests",  # a file of the task's own tests, or one that they use
    "runner-config",  # conftest.py, pytest.ini, the pytest part of setup.cfg, tox.ini, pyproject.toml
    "shadow",  # a module or plugin that replaces one of the test runner, Python or the interpreter's start-up
    "attributes",  # .gitattributes
    "symlink",  # a link that leads out of the repository or blocks the path of a test file
    "report",  # a result of the test run that contradicts the host's observation
]


class Tampering(BaseModel):
    """A part of a patch that could change the verdict without a change of the code under test.

    Honest patches have such parts too, such as new tests. They never affect the verdict.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: TamperKind
    path: str = Field(description="in the repository; for `report` the test's id, or empty")
    done: str = Field(description="one sentence: how the grader handled it")


class Suspicion(BaseModel):
    """A construct in a patch that cheats use and honest product code rarely has."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: str = Field(description="possible use, such as `frame access`")
    name: str = Field(description="name in the code, such as `_getframe`")
    path: str = Field(description="in the repository")
    line: int = Field(ge=0, description="from 1; 0 where it has none")


class Hashes(BaseModel):
    """SHA-256 (hex) of a verdict's inputs; None where there was none."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    task: str = Field(description="`Task.digest`")
    patch: str = Field(description="the patch, byte for byte")
    tests: str | None = Field(default=None, description="the test files as run")
    tree: str | None = Field(default=None, description="git id of the whole graded work tree")
    log: str | None = Field(default=None, description="the test log as stored")


class Grade(BaseModel):
    """A verdict, and the reward of it; a grader that cannot decide raises `GraderError` instead."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    resolved: bool
    reward: float = Field(
        default_factory=lambda known: 1.0 if known.get("resolved") else 0.0,
        ge=0,
        le=1,
        description="what the patch earned; by default 1.0 when resolved, else 0.0",
    )
    reason: str = Field(default="", description="one sentence when not resolved")
    fail_to_pass: dict[str, TestStatus] = Field(default_factory=dict)
    pass_to_pass: dict[str, TestStatus] = Field(default_factory=dict)
    phantoms: tuple[str, ...] = Field(
        default=(),
        description="names in the two that no test has: the log has them, for the data set's own parser",
    )
    test_exit_code: int | None = Field(default=None, description="None when no test ran")
    test_seconds: float = Field(default=0.0, ge=0, description="the bare test run, seconds")
    channel: Literal["reporter", "log"] | None = Field(
        default=None, description="source of the statuses; None when no test ran"
    )
    applied_with: str | None = Field(default=None, description="what applied the patch, such as `git apply`")
    tampering: tuple[Tampering, ...] = ()
    suspicious: tuple[Suspicion, ...] = ()
    unchecked: str = Field(
        default="",
        description="why it is unknown whether the repository was at base_commit; empty where it was",
    )
    notes: tuple[str, ...] = Field(
        default=(), description="what a user should know of the verdict, sentences"
    )
    hashes: Hashes | None = None
    image_id: str | None = Field(default=None, description="`Sandbox.image_id` of the grading sandbox")


class Graded(BaseModel):
    """A grade and its test log, which has a file of its own beside the record."""

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
            GraderError: There is no verdict, for reasons outside the patch.
            SandboxError: The fresh sandbox failed.
        """
        ...
