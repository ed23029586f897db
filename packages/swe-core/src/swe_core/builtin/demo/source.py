"""DemoSource: a task from each folder of `repos/`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from swe_core.api.task import Task
from swe_core.builtin.demo.materialise import materialise

REPOS = Path(__file__).parent / "repos"
RECORDING = Path(__file__).parent / "recording.jsonl"

IMAGE = "swe-core-demo:1"
"""A container image with python3, git and pytest; the repository is put into it."""


class DemoSource:
    """The demo tasks, which README.md beside this module describes.

    `recording` has replies to them, written by hand.

    Args:
        cache: Where the repositories are made, once; default is the user's cache directory.
    """

    recording: Path | None = RECORDING

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or platformdirs.user_cache_path("swe-core") / "demo"

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in the order of their names; a repository is created with its task.

        Raises:
            TaskError: A repository cannot be made: no git, or nowhere to write.
        """
        for folder in sorted(path.parent for path in REPOS.glob("*/task.toml")):
            yield self._task(folder)

    def _task(self, folder: Path) -> Task:
        columns = tomllib.loads(_text(folder / "task.toml"))
        return Task(
            **columns,
            problem_statement=_text(folder / "issue.md"),
            patch=_text(folder / "gold.patch"),
            test_patch=_text(folder / "test.patch"),
            image=IMAGE,
            repository=materialise(folder / "history.fast-import", columns["base_commit"], self.cache),
        )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
