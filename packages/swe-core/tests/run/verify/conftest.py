"""A small repository with a bug, whose later history holds the fix, and tasks on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.limits import Limits
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.run.verify.recipe import Cheat
from swe_core.run.verify.verify import Methods

from ...repositories import Repo, provider

__all__ = ["provider"]
FUNCTIONS = """from adder import add


def test_small():
    assert add(2, 2) == 4


def test_nothing_added():
    assert add(2, 0) == 2
"""
CASES = """import unittest

from adder import add


class Adding(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(2, 2), 4)

    def test_nothing_added(self):
        self.assertEqual(add(2, 0), 2)
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`adder.py` subtracts; the branch `later` adds."""
    repo = Repo(tmp_path_factory.mktemp("verify") / "adder")
    (repo.path / ".gitignore").write_text("__pycache__/\n*.pyc\n")
    adder = "def add(a, b):\n    return a - b\n"
    repo.commit(adder_py=adder, tests__test_other_py="def test_other():\n    pass\n")
    repo.sh("git checkout -qb later")
    repo.commit(adder_py=adder.replace("-", "+"))
    repo.sh("git checkout -q -")
    return repo.path


def new_file(path: str, text: str) -> str:
    """The diff that adds a file."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n{body}"
    )


@pytest.fixture(scope="session")
def make_task(repository: Path) -> Callable[..., Task]:
    """A task on the repository; arguments are the fields that differ."""
    repo = Repo(repository)
    row: dict[str, Any] = {
        "instance_id": "t__adder-1",
        "repo": "t/adder",
        "base_commit": repo.head,
        "repository": repository,
        "problem_statement": "add(2, 2) is 0.",
        "patch": repo.sh("git diff HEAD later"),
        "test_patch": new_file("tests/test_adder.py", FUNCTIONS),
        "fail_to_pass": ("tests/test_adder.py::test_small",),
        "pass_to_pass": ("tests/test_adder.py::test_nothing_added",),
        "test_command": "python -m pytest -rA -p no:cacheprovider",
    }
    return lambda **fields: Task(**{**row, **fields})


class ScriptedGrader:
    """Answers by a function: patch and number of its earlier gradings → a grade, or an error to raise."""

    def __init__(self, answer: Callable[[bytes, int], Grade | Exception]) -> None:
        self.answer = answer
        self.graded: list[bytes] = []

    async def grade(self, task: Task, patch: bytes, *rest: object) -> Graded:
        number = self.graded.count(patch)
        self.graded.append(patch)
        answer = self.answer(patch, number)
        if isinstance(answer, Exception):
            raise answer
        return Graded(grade=answer)


@pytest.fixture
def methods(provider: SandboxProvider) -> Callable[..., Methods]:
    """Methods with a grader and some cheats."""

    def make(grader: Grader, cheats: tuple[Cheat, ...] = (), repeat: int = 1, **fields: Any) -> Methods:
        given: dict[str, Any] = {
            "provider": provider,
            "grader": grader,
            "limits": Limits(),
            "cheats": cheats,
            "repeat": repeat,
            "spec": lambda task: SandboxSpec(repository=task.repository, network="none"),
            "sandbox": "local",
            "grader_name": "scripted",
            "facts": {},
        }
        return Methods(**{**given, **fields})

    return make
