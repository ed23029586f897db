"""Task: one repository bug to fix, and the tests that decide; TaskSource: where tasks come from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

TestStatus = Literal["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS", "MISSING"]

IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
"""Pattern of a complete container image name."""


class Task(BaseModel):
    """One task. The agent sees only `problem_statement` and the repository.

    Fields with the meaning of a SWE-bench column have its name, in lower case
    (https://www.swebench.com/SWE-bench/guides/datasets/).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    instance_id: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    repo: str
    base_commit: str = Field(min_length=1, description="the commit with the bug")
    problem_statement: str = Field(min_length=1)
    patch: str = Field(description="the gold patch, a unified diff against the base; empty where unknown")
    test_patch: str = Field(description="the tests that decide, a unified diff against base_commit")
    fail_to_pass: tuple[str, ...] = Field(description="test ids that fail now and must pass")
    pass_to_pass: tuple[str, ...] = Field(description="test ids that pass now and must still pass")
    expected: dict[str, TestStatus] | None = Field(
        default=None,
        description="test id → required status; the whole result is compared exactly",
    )
    bug_patch: str = Field(
        default="",
        description="a unified diff that turns the repository into the base, applied first",
    )
    hidden: tuple[str, ...] = Field(
        default=(), description="absolute paths of the image that the agent's sandbox must not contain"
    )
    version: str = ""
    hints_text: str = ""
    image: str | None = Field(default=None, description="container image with the repository in `workdir`")
    repository: Path | None = Field(
        default=None,
        description="host directory (a git work tree at base_commit) that each sandbox copies; "
        "None if the image contains the repository",
    )
    workdir: str = "/testbed"
    setup: str = Field(default="", description="shell lines before the test command, such as conda activate")
    test_command: str = Field(description="shell command or script, to which the test files are appended")
    test_files: tuple[str, ...] | None = Field(
        default=None,
        description="files to append to test_command; None: those of the test patch, else those of the ids",
    )
    log_parser: str = Field(
        default="pytest",
        description='parser of the log: "pytest", "unittest", "django", "r2e" or "swebench:NAME"',
    )

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if not self.fail_to_pass and not self.expected:
            raise ValueError("a task needs tests that decide: fail_to_pass, or expected")
        return self

    @property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of the fields that decide a verdict.

        These are all except the statement, the hints and the host path.
        """
        kept = self.model_dump_json(exclude={"problem_statement", "hints_text", "repository"})
        return hashlib.sha256(kept.encode()).hexdigest()


class TaskSource(Protocol):
    """Where tasks come from.

    `recording` is a file of recorded replies for these tasks, or None. It is the default recording of the
    engine `replay`.
    """

    recording: Path | None

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in a stable order.

        Raises:
            TaskError: A row is invalid; the message names the row, the column and what was expected.
        """
        ...
