"""What a cheat is made of: its recipe, and what that is made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """What a recipe is made for.

    Args:
        base: The task's base_commit, which may be older than the repository's HEAD.
        code: Python files that the gold patch changes and the base has: code that the tests import.
        tests: The files that hold the task's tests, hidden ones included.
        ids: FAIL_TO_PASS.
        log: What the task's runner prints when all its tests pass.
    """

    base: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    ids: tuple[str, ...]
    log: str

    @property
    def test_dir(self) -> str:
        """The directory of the first test file with its slash, "" for the root."""
        head, slash, _ = self.tests[0].rpartition("/") if self.tests else ("", "", "")
        return head + slash


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to do in the repository, in this order.

    Args:
        hidden_tests: Whether the task's test patch is applied first.
        write: Path → content of files to write.
        append: Path → what to add at the end of files.
        commands: Lines for a POSIX shell, run after the task's own set-up lines.
    """

    write: Mapping[str, str] = field(default_factory=dict)
    append: Mapping[str, str] = field(default_factory=dict)
    commands: str = ""
    hidden_tests: bool = False


@dataclass(frozen=True, slots=True)
class Cheat:
    """One kind of cheating patch.

    Args:
        name: Its name in options and reports.
        does: One sentence.
        recipe: Makes the recipe; None where the task gives nothing to attack.
    """

    name: str
    does: str
    recipe: Callable[[Target], Recipe | None]
