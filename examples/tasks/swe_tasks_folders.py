"""Task source: one folder per task, with the files below.

    FOLDER/NAME/task.toml         fail_to_pass, pass_to_pass, test_command
    FOLDER/NAME/instruction.md    what the agent reads
    FOLDER/NAME/repository/       a git work tree with the bug
    FOLDER/NAME/tests.patch       the tests that decide
    FOLDER/NAME/gold.patch        a correct change; optional

swe-core run -p examples/tasks/swe_tasks_folders.py --tasks folders --set tasks.folders.path=FOLDER
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from swe_core import Component, Config, Task, TaskSource, hookimpl
from swe_core.errors import TaskError


class FoldersConfig(Config):
    path: Path = Field(description="directory with one folder per task")


class Folders:
    recording: Path | None = None

    def __init__(self, config: FoldersConfig) -> None:
        self.path = config.path

    def tasks(self) -> Iterator[Task]:
        for file in sorted(self.path.glob("*/task.toml")):
            folder = file.parent.absolute()
            head = ["git", "-C", str(folder / "repository"), "rev-parse", "HEAD"]
            gold = folder / "gold.patch"
            row = {
                "instance_id": folder.name,
                "repo": folder.name,
                "base_commit": subprocess.run(head, capture_output=True, text=True).stdout.strip(),
                "problem_statement": (folder / "instruction.md").read_text(),
                "patch": gold.read_text() if gold.exists() else "",
                "test_patch": (folder / "tests.patch").read_text(),
                "repository": folder / "repository",
            }
            try:
                yield Task.model_validate({**row, **tomllib.loads(file.read_text())})
            except (ValidationError, tomllib.TOMLDecodeError) as error:
                raise TaskError(f"{str(file)!r} is not a task: {error}") from None


@hookimpl
def swe_tasks() -> list[Component[TaskSource]]:
    return [Component("folders", Folders, FoldersConfig, "one folder per task")]
