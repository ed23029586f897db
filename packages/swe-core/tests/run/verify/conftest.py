"""A small repository with a bug, whose later history holds the fix, and tasks on it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.limits import Limits
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin import local
from swe_core.builtin.local import bwrap
from swe_core.run.verify.recipe import Cheat
from swe_core.run.verify.verify import Methods

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


def git(where: Path, *args: str) -> str:
    who = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", where, *who, *args], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`adder.py` subtracts; the branch `later` adds."""
    path = tmp_path_factory.mktemp("verify") / "adder"
    (path / "tests").mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    (path / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    (path / "tests" / "test_other.py").write_text("def test_other():\n    pass\n")
    (path / ".gitignore").write_text("__pycache__/\n*.pyc\n")
    git(path, "add", ".")
    git(path, "commit", "-qm", "An adder")
    git(path, "checkout", "-qb", "later")
    (path / "adder.py").write_text("def add(a, b):\n    return a + b\n")
    git(path, "commit", "-qam", "It adds")
    git(path, "checkout", "-q", "main")
    return path


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

    def make(**fields: Any) -> Task:
        row: dict[str, Any] = {
            "instance_id": "t__adder-1",
            "repo": "t/adder",
            "base_commit": git(repository, "rev-parse", "HEAD").strip(),
            "problem_statement": "add(2, 2) is 0.",
            "patch": git(repository, "diff", "main", "later"),
            "test_patch": new_file("tests/test_adder.py", FUNCTIONS),
            "fail_to_pass": ("tests/test_adder.py::test_small",),
            "pass_to_pass": ("tests/test_adder.py::test_nothing_added",),
            "repository": repository,
            "test_command": "python -m pytest -rA -p no:cacheprovider",
        }
        return Task(**(row | fields))

    return make


@pytest.fixture(scope="session")
def provider() -> SandboxProvider:
    """The local one."""
    if (obstacle := bwrap.why_not(bwrap.find_bwrap())) is not None:
        pytest.skip(obstacle)
    component = next(iter(local.swe_sandboxes()))
    return component.create(component.config())


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
def scripted() -> type[ScriptedGrader]:
    return ScriptedGrader


@pytest.fixture
def methods(provider: SandboxProvider) -> Callable[..., Methods]:
    """Methods with a grader and some cheats."""

    def make(grader: Grader, cheats: tuple[Cheat, ...] = (), repeat: int = 1, **fields: Any) -> Methods:
        given: dict[str, Any] = {
            "provider": provider,
            "grader": grader,
            "spec": lambda task: SandboxSpec(repository=task.repository, network="none"),
            "limits": Limits(),
            "cheats": cheats,
            "repeat": repeat,
            "sandbox": "local",
            "grader_name": "scripted",
            "facts": {},
        }
        return Methods(**(given | fields))

    return make
