"""Failing tests in logs that pytest and unittest really print, and in logs of an attacker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.report import failing_tests
from swe_core.report.failing_tests import TestFailure, by_test, failures_of

SUITE = '''\
import unittest

import pytest


def refuse(x):
    raise ValueError(f"bad {x}")


def test_passes():
    pass


def test_plain():
    print("E   printed")
    print("____ printed ____")
    assert {"k": 1} == {"k": 2}, "why: 1: x"


class TestClass:
    @pytest.mark.parametrize("x", ["a - b", "c::d", "[e] - f"])
    def test_names(self, x):
        refuse(x)


def test_chain():
    try:
        refuse(1)
    except ValueError as error:
        raise KeyError("k") from error


@pytest.fixture
def breaking():
    yield
    raise RuntimeError("too late")


def test_teardown(breaking):
    pass


class Old(unittest.TestCase):
    def test_lists(self):
        """A line of documentation."""
        self.assertEqual([1, 2], [1, 3])
'''
LINES = {name: number for number, line in enumerate(SUITE.splitlines(), 1) for name in [line.strip()]}
RAISED, ASSERTED = LINES['raise ValueError(f"bad {x}")'], LINES['assert {"k": 1} == {"k": 2}, "why: 1: x"']
PLACES = {
    "test_suite.py::test_plain": ASSERTED,
    "test_suite.py::TestClass::test_names[a - b]": RAISED,
    "test_suite.py::TestClass::test_names[c::d]": RAISED,
    "test_suite.py::TestClass::test_names[[e] - f]": RAISED,
    "test_suite.py::test_chain": LINES['raise KeyError("k") from error'],
    "test_suite.py::test_teardown": LINES['raise RuntimeError("too late")'],
    "test_suite.py::Old::test_lists": LINES["self.assertEqual([1, 2], [1, 3])"],
}
"""Test → the line of its error."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "test_suite.py"
    path.write_text(SUITE)
    return path


def log_of(suite: Path, *args: str) -> str:
    command = [sys.executable, "-m", *args]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # faster
    into = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=suite.parent, env=env, text=True, timeout=120, check=False, **into)
    assert done.returncode in (1, 2), done.stdout
    return done.stdout


def pytest_log(suite: Path, *options: str) -> str:
    return log_of(suite, "pytest", "-p", "no:cacheprovider", *options, suite.name)


SLOW = [pytest.param(it, marks=pytest.mark.slow) for it in (("--color=yes", "--tb=short"), ("--tb=native",))]


@pytest.mark.parametrize("options", [("-rA",), *SLOW], ids=lambda it: it[0])
def test_pytest_log_has_each_failure_with_its_place(suite: Path, options: tuple[str, ...]) -> None:
    found = failures_of(pytest_log(suite, *options))
    assert {failure.test: failure.line for failure in found} == PLACES
    assert {Path(str(failure.file)).name for failure in found} == {suite.name}
    plain = next(failure for failure in found if failure.test.endswith("test_plain"))
    text = "\n".join(plain.lines)
    assert 'assert {"k": 1} == {"k": 2}, "why: 1: x"' in plain.lines[0]
    assert "AssertionError: why: 1: x" in text
    assert "printed" not in text
    if "--tb=native" not in options:
        assert plain.lines[0].startswith(">")
        assert all(line.startswith("E") for line in plain.lines[1:])
    (chained,) = (failure for failure in found if failure.test.endswith("test_chain"))
    assert "KeyError: 'k'" in chained.lines[-1]
    assert "bad 1" not in "".join(chained.lines)


def test_unittest_log_has_each_failure_with_its_place(suite: Path) -> None:
    (failure,) = failures_of(log_of(suite, "unittest", "-v", "test_suite"))
    assert failure.test == "test_suite.Old.test_lists"
    assert failure.line == PLACES["test_suite.py::Old::test_lists"]
    assert failure.lines[1] == "AssertionError: Lists differ: [1, 2] != [1, 3]"
    assert failure.lines[-1].startswith("?")


def test_names_of_a_test_mean_the_same() -> None:
    """A name without its file, too, where it is unique."""
    whole = "test_suite.Old.test_lists"
    failure = TestFailure(whole, "f.py", 1)
    for name in (whole, f"test_lists ({whole})", "test_lists (test_suite.Old)"):
        assert by_test([failure], [name, "other"]) == {name: failure}
    one, other = TestFailure("a.py::C::test[x]", "a.py"), TestFailure("b.py::D::test", "b.py")
    assert by_test([one, other], ["C.test[x]", "D.test"]) == {"C.test[x]": one, "D.test": other}
    twice = [TestFailure("a.py::test", "a.py"), TestFailure("b.py::test", "b.py")]
    assert by_test(twice, ["test", "b.py::test"]) == {"b.py::test": twice[1]}


def test_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nowhere\n")
    (failure,) = failures_of(pytest_log(tmp_path / "test_broken.py"))
    assert (failure.test, failure.file, failure.line) == ("test_broken.py", "test_broken.py", 1)
    assert failure.lines[-1] == "E   ModuleNotFoundError: No module named 'nowhere'"


HEAD = "====== FAILURES ======\n"


@pytest.mark.parametrize(
    "log",
    [
        "E " * 500_000,
        "a:" * 500_000,
        "\x1b[31m" * 200_000,
        HEAD + "___ a ___\nE  x\n" * 60_000,
        "====== short test summary info ======\n" + "FAILED a[ - ] - \n" * 60_000,
        ("= " * 900 + "\n") * 500,
    ],
    ids=range(6),
)
def test_hostile_log_is_cheap_and_its_result_bounded(log: str) -> None:
    began = time.process_time()
    found = failures_of(log)
    assert time.process_time() - began < 5  # about 0.3 on an idle machine
    assert len(found) <= failing_tests.MAX_FAILURES
    for failure in found:
        assert len(failure.lines) <= failing_tests.MAX_LINES
        assert all(len(line) <= 12 * failing_tests.MAX_WIDTH for line in failure.lines)


PIECES = ["=" * 70, "-" * 70, "\x1b[1mE   \u202e\x1b[0m", "   "]
PIECES += """
====== FAILURES ======
___ a ___
E   x
> y
a.py:3: in f
FAIL: t (m.C)
Traceback (most recent call last):
  File "a.py", line 3, in f
====== short test summary info ======
FAILED a.py::t[ - x
""".splitlines()


@given(st.lists(st.sampled_from(PIECES)))
def test_any_log_is_read_and_printable(lines: list[str]) -> None:
    for failure in failures_of("\n".join(lines)):
        text = "".join((failure.test, failure.file or "", *failure.lines))
        assert not any(character in text for character in "\x1b\n\u202e")
