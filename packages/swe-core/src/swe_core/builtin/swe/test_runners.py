"""The programs that run inside a sandbox and tell how its tests ended: one file for each test runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Literal

Runner = Literal["pytest", "unittest"]
"""The test runner that a program is for."""

_SHARED = ("common.py", "modules.py", "evidence.py", "own_files.py", "watch.py")
_PARTS: Mapping[Runner, Sequence[str]] = {
    "pytest": (*_SHARED, "pytest_inside.py"),
    "unittest": (*_SHARED, "unittest_inside.py"),
}
# Pytest makes Python objects of a plugin's whole syntax tree before it compiles that. Here it is one string.
_UNSEEN = '"""PYTEST_DONT_REWRITE"""\nexec(compile({source!r}, __file__, "exec"))\n'


@cache
def source(runner: Runner) -> str:
    """Return the source of the program for a test runner, one file after the other."""
    folder = resources.files("swe_core.builtin.swe") / "reporter"
    return "\n\n".join((folder / name).read_text() for name in _PARTS[runner])


@cache
def program(runner: Runner) -> bytes:
    """Return the file that the test runner loads."""
    text = source(runner)
    return (_UNSEEN.format(source=text) if runner == "pytest" else text).encode()
