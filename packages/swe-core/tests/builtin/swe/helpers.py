"""Repositories with a buggy `calc.py`, and the tasks to fix it."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.api.task import Task
from swe_testing.records import make_task

from ...repositories import Repo
from .suites import PYTHON, SUMMARY

BUGGY = "def add(a, b):\n    return a - b\n"
FIX = "sed -i 's/a - b/a + b/' calc.py"
PYTEST = f"{PYTHON} -m pytest {SUMMARY} -p no:cacheprovider"
EMPTIED_CLASS = """
import builtins
make = builtins.__build_class__
def emptied(body, name, *bases, **more):
    kind = make(body, name, *bases, **more)
    if name == "AddTest":
        kind.test_add = lambda self: None
        builtins.__build_class__ = make
    return kind
builtins.__build_class__ = emptied
"""
"""An attack that empties a test while its class is created."""


def with_and_without_import(factory: pytest.TempPathFactory, **files: str) -> dict[str, Repo]:
    """Make two repositories, keyed by the first line of conftest.py: empty, or an import of `calc`."""
    found = {}
    for start in ("", "import calc\n"):
        found[start] = Repo(factory.mktemp("repo") / "r")
        found[start].commit(**{**files, "conftest_py": start + files["conftest_py"]})
    return found


def calc_task(repo: Repo, gold: str, hidden: str, test: str = "test_add", **changed: Any) -> Task:
    """Make a task whose test patch appends a hidden test to tests/test_calc.py.

    Args:
        gold: Script that makes the gold patch.
        hidden: Lines that the test patch appends.
        test: Name of the FAIL_TO_PASS test; `test_zero` is the PASS_TO_PASS test.
        changed: Fields of the task that differ.
    """
    fields: dict[str, Any] = {
        "base_commit": repo.head,
        "patch": repo.diff(gold),
        "test_patch": repo.diff(f"cat >>tests/test_calc.py <<'END'\n{hidden}END"),
        "fail_to_pass": (f"tests/test_calc.py::{test}",),
        "pass_to_pass": ("tests/test_calc.py::test_zero",),
        "setup": "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",  # starts faster
        "test_command": PYTEST,
    }
    return make_task(**{**fields, **changed})


def defining_add(code: str) -> str:
    """Return `code` as all of calc.py, with the buggy `add` before it unless it defines its own."""
    return f"{'' if 'def add(' in code else BUGGY}{code}\n"
