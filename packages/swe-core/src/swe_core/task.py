"""Task: one repository bug to fix, and the tests that decide; TaskSource: where tasks come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

LogParser = Literal["pytest", "unittest"]


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
    patch: str = Field(description="the gold patch, a unified diff against base_commit")
    test_patch: str = Field(description="the tests that decide, a unified diff against base_commit")
    fail_to_pass: tuple[str, ...] = Field(min_length=1, description="test ids that fail now and must pass")
    pass_to_pass: tuple[str, ...] = Field(description="test ids that pass now and must still pass")
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
    test_command: str = Field(description="shell command; the test files are appended to it")
    log_parser: LogParser = "pytest"


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
