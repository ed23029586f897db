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
"""What the name of a container image looks like, whole."""


class Task(BaseModel):
    """One task. What the agent sees is `problem_statement` and the repository; the rest is the host's.

    The field names of the SWE-bench family are kept where the meaning is the same
    (https://www.swebench.com/SWE-bench/guides/datasets/), in lower case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    instance_id: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    repo: str
    base_commit: str = Field(min_length=1, description="the commit that the bug is in")
    problem_statement: str = Field(min_length=1)
    patch: str = Field(description="the gold patch, a unified diff against the base; empty where unknown")
    test_patch: str = Field(description="the tests that decide, a unified diff against base_commit")
    fail_to_pass: tuple[str, ...] = Field(description="test ids that fail now and must pass")
    pass_to_pass: tuple[str, ...] = Field(description="test ids that pass now and must still pass")
    expected: dict[str, TestStatus] | None = Field(
        default=None,
        description="test id → how it must end: all of the result, compared exactly",
    )
    bug_patch: str = Field(
        default="",
        description="a unified diff that makes the base: applied to the repository before all else",
    )
    hidden: tuple[str, ...] = Field(
        default=(), description="absolute paths of the image that the agent's sandbox is opened without"
    )
    version: str = ""
    hints_text: str = ""
    image: str | None = Field(default=None, description="container image with the repository in `workdir`")
    repository: Path | None = Field(
        default=None,
        description="host directory (a git work tree at base_commit) that a sandbox gets a private copy of; "
        "None where the image carries the repository",
    )
    workdir: str = "/testbed"
    setup: str = Field(default="", description="shell lines run before the test command, e.g. conda activate")
    test_command: str = Field(description="shell command or script; the test files are appended to it")
    test_files: tuple[str, ...] | None = Field(
        default=None,
        description="what is appended to test_command; None is the files of the test patch, else of the ids",
    )
    log_parser: str = Field(
        default="pytest",
        description='how the log is read: "pytest", "unittest", "django", "r2e" or "swebench:NAME"',
    )

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if not self.fail_to_pass and not self.expected:
            raise ValueError("a task needs tests that decide: fail_to_pass, or expected")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all that decides a verdict: the row without its statement, hints and host path."""
        kept = self.model_dump_json(exclude={"problem_statement", "hints_text", "repository"})
        return hashlib.sha256(kept.encode()).hexdigest()


class TaskSource(Protocol):
    """Where tasks come from.

    `recording` names a file of recorded replies for these tasks, which the `replay` engine answers from
    when nobody names another; None where there is none.
    """

    recording: Path | None

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in a stable order.

        Raises:
            TaskError: A row is invalid; the message names the row, the column and what was expected.
        """
        ...
