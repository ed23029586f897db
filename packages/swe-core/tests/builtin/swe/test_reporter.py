# ruff: noqa: E501 (programs in strings)
"""The reporter: its report of honest test runs, and its transparency to them."""

from __future__ import annotations

import hashlib
import hmac
import tracemalloc
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.sandbox import Sandbox
from swe_core.builtin.swe import report as report_module
from swe_core.builtin.swe.agreement import PRIME, Agreement
from swe_core.builtin.swe.parsers import parse_pytest
from swe_core.builtin.swe.report import MAX_LINE, SESSIONS, Report, Reporter
from swe_core.builtin.swe.run_tests import TestRun
from swe_core.builtin.swe.test_runners import source

from ...repositories import slow_but
from . import suites
from .suites import PYTHON, run, run_twice

pytestmark = pytest.mark.anyio
PYTEST = f"{PYTHON} -m pytest -rA -p no:cacheprovider -p no:randomly"

UNKNOWN = (
    f"{PYTHON} -c 'import fcntl, sys, pytest; del fcntl.F_DUPFD_CLOEXEC; sys.exit(pytest.main(sys.argv[1:]))' "
    "-rA -p no:cacheprovider -p no:randomly"
)
"""Python without a function that the reporter needs."""


def a_suite(files: dict[str, str], command: str = PYTEST, **more: Any) -> suites.Suite:
    return suites.Suite(files, command, **more)


PLAIN = """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("set-up")

@pytest.fixture
def breaks():
    yield
    raise RuntimeError("tear-down")

def test_pass():
    print("PASSED test_plain.py::test_fail")
    assert True

def test_fail(): assert [1, 2] == [1, 3], "message - with a dash"
def test_raise(): raise ValueError("no\\nsecond line")
def test_setup(broken): pass
def test_teardown(breaks): pass
@pytest.mark.skip(reason="because")
def test_skip(): pass
def test_skip_inside(): pytest.skip("later")
@pytest.mark.xfail
def test_xfail(): assert 0
def test_xfail_inside(): pytest.xfail("known")
@pytest.mark.xfail
def test_xpass(): pass
@pytest.mark.xfail(strict=True)
def test_strict(): pass
@pytest.mark.xfail(raises=ValueError)
def test_other_error(): raise KeyError("x")
"""
PARAMETERS = """
import pytest

@pytest.mark.parametrize("text", ["a b", "x - y", "[1]", "] - [", "\\u00e4\\u4e2d", "\\n", "", "::", "\\ud800"])
def test_text(text): assert "b" not in text

@pytest.mark.parametrize("left", [1, 2], ids=["one two", "three"])
@pytest.mark.parametrize("right", [1, 2])
def test_two(left, right): assert left == right
"""
CLASSES = """
import unittest
import pytest

@pytest.fixture(scope="class")
def numbers(request):
    print("class fixture")
    request.cls.numbers = [1]
    yield
    print("class fixture ends")

@pytest.mark.usefixtures("numbers")
class TestPlain:
    def setup_method(self): self.x = 1
    def test_one(self): assert self.numbers == [self.x]
    def test_two(self): assert self.numbers == [2]
    @staticmethod
    def test_static(): pass
    @classmethod
    def test_class(cls): pass

class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.ready = True
    def test_good(self): self.assertTrue(self.ready)
    def test_bad(self): self.assertEqual(1, 2)
    def test_error(self): raise ValueError("x")
    @unittest.skip("not now")
    def test_skip(self): pass
    def test_skip_inside(self): self.skipTest("later")
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass

class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("class")
    def test_never(self): pass
"""
SUBTESTS = """
import unittest

class Case(unittest.TestCase):
    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)
    def test_good_parts(self):
        with self.subTest("all good"):
            pass
"""
SETUPS = """
import pytest

def note(what):
    print(what)
    with open("doings", "a") as file:
        file.write(what + "\\n")

def setup_module(): note("module")
def teardown_module(): note("end of module")

@pytest.fixture(scope="session", autouse=True)
def session():
    note("session")
    yield
    note("end of session")

@pytest.fixture(autouse=True)
def each():
    note("each")

def test_a(): note("a")
def test_b(): note("b"); assert 0
"""
TRACES = """
import os, subprocess, sys

def test_environment():
    assert "PYTHONPATH" not in os.environ and "PYTEST_ADDOPTS" not in os.environ

def test_path():
    assert not [path for path in sys.path if ".swe" in path or "/." in path.replace(".venv", "").replace("/./", "")
                and path.startswith("/tmp")]

def test_descriptors():
    try:
        os.fstat(9)
    except OSError:
        return
    raise AssertionError("descriptor 9 is open")

def test_children():
    code = "import os; print(sorted(os.listdir('/proc/self/fd')), os.environ.get('PYTHONPATH'))"
    text = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, close_fds=False).stdout.decode()
    print(text)
    assert "'500'" not in text and "'9'" not in text and "None" in text

def test_plugins(request):
    assert not [name for name in request.config.option.plugins if name.startswith("_")]

def test_fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
NESTED = """
import subprocess, sys
import pytest

def test_inside(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_x(): assert 0")
    assert pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:subtests", str(tmp_path)]) == 1

def test_child(tmp_path):
    (tmp_path / "test_y.py").write_text("def test_y(): pass")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)])
    assert done.returncode == 0
"""
PATCHED = """
import builtins, os, sys
import pytest

def test_monkeypatch(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(builtins, "open", None)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)

def test_tracer():
    sys.settrace(lambda *_: None)
    sys.settrace(None)

def test_warns(recwarn, caplog):
    with pytest.warns(UserWarning):
        import warnings
        warnings.warn("x")
"""

DEFAULTS = """
import contextlib, functools

ONE = 1

def kept(f):
    @functools.wraps(f)
    def wrapper(*args): return f(*args)
    return wrapper

def lost(f):
    def wrapper(a=2): return f()
    return wrapper

@contextlib.contextmanager
def near(tolerance=1e-6, seen=[]):
    seen.append(1)
    yield tolerance

@kept
def check(a=1): assert a == 1

@lost
def also_check(a=1): assert a == 1

def test_fills(n=[], one=ONE): n.append(one)

def test_calls():
    check()
    also_check()
    with near() as tolerance:
        assert tolerance < 1
"""

IMPORTS = """
from math import isclose
from unittest import TestCase, IsolatedAsyncioTestCase, mock
from os.path import join, exists
from textwrap import *

def exists(path): return False
join = str.join

class Base(TestCase):
    def setUp(self): self.one = 1

class OneTest(Base):
    def test_one(self): self.assertTrue(isclose(self.one, 1) and not exists("/"))

class MockTest(IsolatedAsyncioTestCase):
    @mock.patch("os.getcwd", lambda: "/")
    async def test_two(self): self.assertEqual(dedent(" 2"), "2")
"""

LIFETIMES = """
import gc, weakref, pytest
class Thing: pass
seen = []
@pytest.fixture
def thing(): return Thing()
@pytest.fixture(scope="module")
def one(): return Thing()
@pytest.mark.parametrize("number", [1, 2])
def test_use(thing, one, number): seen.append(weakref.ref(thing))
def test_gone():
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
"""

ZOO = {
    "plain": a_suite({"test_plain.py": PLAIN}),
    "plain, verbose": a_suite({"test_plain.py": PLAIN}, f"{PYTEST} -vv --tb=long -W ignore", plugins=True),
    "no output of its own": a_suite({"test_plain.py": PLAIN}, f"{PYTEST} -s --tb=no -q"),
    "first failure": a_suite({"test_plain.py": PLAIN, "test_z.py": SETUPS}, f"{PYTEST} -x"),
    "selected": a_suite({"test_plain.py": PLAIN}, f"{PYTEST} -k 'fail or setup'"),
    "parameters": a_suite({"test_parameters.py": PARAMETERS}),
    "classes": a_suite({"test_classes.py": CLASSES}),
    "subtests": a_suite({"test_subtests.py": SUBTESTS}, plugins=True),
    "setups": a_suite({"test_setups.py": SETUPS}, kept="doings"),
    "setups in a package": a_suite(
        {"test_setups.py": SETUPS, "__init__.py": "print('package')\ndef setup_module(): print('set up')\n"},
        kept="doings",
    ),
    "traces": a_suite({"test_traces.py": TRACES}),
    # pytest-subtests takes back what it replaced when the first pytest.main() of the process ends
    "nested": a_suite({"test_nested.py": NESTED}, f"{PYTEST} -s -p no:subtests"),
    "patched": a_suite({"test_patched.py": PATCHED}),
    "lifetimes": a_suite({"test_lifetimes.py": LIFETIMES}),
    "defaults": a_suite({"test_defaults.py": DEFAULTS}),
    "imports": a_suite({"test_imports.py": IMPORTS}, odd=frozenset({"patched", "unittest.mock._patch"}),
                       needs="from unittest import IsolatedAsyncioTestCase"),
    "doctest": a_suite(
        {"mod.py": '"""\n>>> 1 + 1\n3\n"""\ndef f():\n    """\n    >>> 2\n    2\n    """\n'},
        f"{PYTEST} --doctest-modules",
    ),
    "importlib": a_suite({"a/test_x.py": PLAIN, "b/test_x.py": PARAMETERS}, f"{PYTEST} --import-mode=importlib",
                       needs="from _pytest.pathlib import ImportMode"),
    "conftests": a_suite(
        {
            "conftest.py": "def pytest_addoption(parser): parser.addoption('--ours')\n",
            "sub/conftest.py": "import pytest\n@pytest.fixture\ndef thing(): return 1\n",
            "sub/test_a.py": "def test_a(thing): assert thing == 1\n",
            "pytest.ini": "[pytest]\naddopts = --ours=1 -v\nrequired_plugins =\n",
        }
    ),
    "broken module": a_suite({"test_a.py": "import no_such_module\n", "test_b.py": "def test_b(): pass\n"}),
    "broken conftest": a_suite({"conftest.py": "import no_such\n", "test_b.py": ""}, silent=True),
    "nothing collected": a_suite({"test_a.py": ""}),
    "wrong option": a_suite({"test_a.py": ""}, f"{PYTEST} --no-such-option", silent=True),
    "version": a_suite({}, f"{PYTEST} --version", silent=True),
    "a version before": a_suite({"test_plain.py": PLAIN}, f"{PYTEST} --version; {PYTEST}"),
    "two runs": a_suite({"test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): assert 0\n"},
                      f"{PYTEST} test_a.py; {PYTEST} test_b.py"),
    "one process": a_suite({"test_plain.py": PLAIN}, f"{PYTEST} -n0", needs="xdist"),
    "two processes": a_suite({"test_plain.py": PLAIN, "test_p.py": PARAMETERS.replace("\\ud800", "z")},
                           f"{PYTEST} -n 2 -q --tb=no", shuffled=True, needs="xdist"),
    "reruns": a_suite(
        {"test_flaky.py": "def test_flaky(n=[]):\n    n.append(1)\n    assert len(n) > 1\ndef test_bad(): assert 0\n"},
        f"{PYTEST} --reruns 2",
        needs="pytest_rerunfailures",
    ),
    "coverage": a_suite({"test_plain.py": PLAIN}, f"{PYTHON} -m coverage run -m pytest -rA -p no:randomly",
                      needs="coverage"),
    "pytest-cov": a_suite({"test_a.py": "def test_a(): pass\n"}, f"{PYTEST} --cov=. --cov-report=", needs="pytest_cov",
                        odd=frozenset({"trace"})),
    "asyncio": a_suite(
        {"test_a.py": "import pytest\n@pytest.mark.asyncio\nasync def test_a(): pass\n"
                      "@pytest.mark.asyncio\nasync def test_b(): assert 0\n"},
        needs="pytest_asyncio",
    ),
    "asyncio, every function": a_suite(
        {"test_a.py": "import asyncio\nasync def test_a(): await asyncio.sleep(0)\nasync def test_b(): assert 0\n"
                      "def test_c(): assert 0\n"},
        f"{PYTEST} --asyncio-mode=auto",
        needs="from pytest_asyncio.plugin import Mode",
    ),
    "time-outs": a_suite(
        {"test_a.py": "import time\ndef test_a(): pass\ndef test_slow(): time.sleep(9)\ndef test_b(): assert 0\n"},
        f"{PYTEST} --timeout=1 --timeout-method=signal",
        needs="pytest_timeout",
    ),
    "parts": a_suite(
        {"test_a.py": "def test_parts(subtests):\n    for i in range(3):\n        with subtests.test(i=i):\n"
                      "            assert i != 1\ndef test_good(subtests):\n    with subtests.test('good'): pass\n"},
        needs="pytest_subtests",
    ),
    "random order": a_suite(
        {"test_plain.py": PLAIN, "test_b.py": "import random\ndef test_b(): assert random.random() < 2\n"},
        f"{PYTHON} -m pytest -rA -p no:xdist --randomly-seed=3",
        needs="pytest_randomly",
    ),
    "not the Python that it knows": a_suite({"test_plain.py": PLAIN}, UNKNOWN, silent=True),
    "not the Python that it knows, two processes": a_suite({"test_plain.py": PLAIN}, f"{UNKNOWN} -n 2 -q --tb=no",
                                                         silent=True, shuffled=True, needs="xdist"),
    "make": a_suite({"test_plain.py": PLAIN, "Makefile": f"test:\n\t{PYTEST}\n"}, "make -s test"),
    "script": a_suite({"test_plain.py": PLAIN, "run.sh": f"#!/bin/sh\nset -eu\n{PYTEST} \"$@\" | cat\n"},
                    "sh run.sh --tb=short"),
    "piped": a_suite({"test_plain.py": PLAIN}, f"set +x; set -o pipefail; {PYTEST} 2>&1 | cat"),
    "by python": a_suite(
        {"test_plain.py": PLAIN,
         "run.py": "import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n"},
        f"{PYTHON} run.py {PYTEST}",
    ),
    "options of its own": a_suite(
        {"test_plain.py": PLAIN},
        f"set +x; export PYTEST_ADDOPTS=\"-q ${{PYTEST_ADDOPTS:-}}\" PYTHONPATH=${{PYTHONPATH:-}}:.; {PYTEST}",
    ),
}  # fmt: skip


FAST = (
    "plain", "parameters", "classes", "subtests", "setups", "traces", "nested", "broken module",
    "broken conftest", "two runs", "two processes", "not the Python that it knows", "make",
)  # fmt: skip


@pytest.mark.parametrize("name", slow_but(FAST, ZOO))
async def test_reporter_does_not_change_an_honest_run(sandbox: Sandbox, name: str) -> None:
    suite = ZOO[name]
    watched = await run_twice(sandbox, suite, "pytest")
    report = watched.report
    if suite.silent:
        return
    if name not in ("make", "script", "two runs"):
        assert report.exit_status == watched.exit_code
    agree(report, watched.log)


def agree(report: Report, log: bytes) -> None:
    """Assert that the report agrees with the summary of pytest."""
    found = {test: status for test, status in parse_pytest(log).items() if status != "SKIPPED"}
    told = {test: status for test, status in report.statuses.items() if status != "SKIPPED"}
    if report.sessions > 1:  # there are as many summaries
        return
    for test in set(told).intersection({"test_subtests.py::Case::test_parts", "test_a.py::test_parts"}):
        assert told.pop(test) == "FAILED"  # pytest may report it as passed, and its parts separately
        found.pop(test, None)
    plain = {test for test in told if "[" not in test}
    assert {test: found.get(test) for test in plain} == {test: told[test] for test in plain}
    assert sorted(found.values()) == sorted(told.values())


# The receiving end


def a_session_of(reporter: Reporter, *events: tuple[str, ...]) -> list[bytes]:
    """Return the lines of a session: announcement, start and these events."""
    inside = Agreement()
    half = bytes.fromhex(inside.half)
    key, name = inside.key(bytes.fromhex(reporter._agreement.half)), hashlib.sha256(half).hexdigest()[:16]
    lines = [b"h " + half.hex().encode()]
    for number, (kind, *fields) in enumerate((("s", "8.0.0", "3.8", "local"), *events)):
        text = f"{name} {number} {kind}" + "".join(f" {part.encode().hex()}" for part in fields)
        signature = hmac.digest(key, text.encode(), hashlib.sha256).hex()[:32]
        lines.append(f"{signature} {text}".encode())
    return [b"\n%b\n" % line for line in lines]


def a_session(reporter: Reporter) -> list[bytes]:
    return a_session_of(
        reporter,
        ("c", "t.py::test_a", "t.py::test_b"),
        ("t", "t.py::test_a", "call", "passed", "0", "-", "-", "0"),
        ("p", "t.py::test_b"),
        ("z", "0", "0", "1", "6"),
    )


def report_of(*events: tuple[str, ...]) -> Report:
    """Return the report of a session of these events."""
    reporter = Reporter()
    reporter.feed(b"".join(a_session_of(reporter, *events)))
    return reporter.report()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_report_reads_a_session_in_pieces_of_any_size(size: int) -> None:
    reporter = Reporter()
    data = b"".join(a_session(reporter))
    for start in range(0, len(data), size):
        reporter.feed(data[start : start + size])
    report = reporter.report()
    assert report.complete
    assert report.exit_status == 0
    assert report.statuses == {"t.py::test_a": "PASSED", "t.py::test_b": "PASSED"}
    assert report.collected == {"t.py::test_a", "t.py::test_b"}
    assert report.odd == frozenset()


@pytest.mark.parametrize("lost", range(6))
def test_report_detects_a_lost_event(lost: int) -> None:
    reporter = Reporter()
    for place, event in enumerate(a_session(reporter)):
        if place != lost:
            reporter.feed(event)
    assert not reporter.report().complete


def test_report_ignores_unsigned_events() -> None:
    reporter, other = Reporter(), Reporter()
    reporter.feed(b"".join(a_session(other)[1:]))
    reporter.feed(b"PASSED t.py::test_a\n0 0 t\n" + b"0" * 32 + b" 0 0 s\n")
    assert reporter.report() == Report()


def test_report_detects_a_replayed_event() -> None:
    reporter = Reporter()
    events = a_session(reporter)
    for event in (*events[:3], *events[2:]):
        reporter.feed(event)
    assert not reporter.report().complete


def test_report_detects_a_silent_session() -> None:
    reporter = Reporter()
    announcement, *_ = a_session(reporter)
    reporter.feed(b"".join((announcement, *a_session(reporter))))
    report = reporter.report()
    assert (report.sessions, report.complete) == (2, False)
    assert report.odd == {"the test runner was started while it ran"}


def test_report_accepts_consecutive_sessions() -> None:
    reporter = Reporter()
    for _ in range(SESSIONS):
        reporter.feed(b"".join(a_session(reporter)))
    assert (reporter.report().sessions, reporter.report().complete) == (SESSIONS, True)
    assert reporter.report().odd == frozenset()
    reporter.feed(b"".join(a_session(reporter)))
    assert reporter.report().odd == {f"the test runner was started more than {SESSIONS} times"}


def test_report_detects_a_repeated_announcement() -> None:
    reporter = Reporter()
    announcement, *events = a_session(reporter)
    reporter.feed(b"".join((announcement, announcement, *events)))
    assert reporter.report().odd == {"a session of the test runner was announced twice"}


@pytest.mark.parametrize("half", [0, 1, PRIME - 1, PRIME, 2**1536 - 1])
def test_report_rejects_degenerate_key_halves(half: int) -> None:
    reporter = Reporter()
    reporter.feed(b"".join((b"\nh %0384x\n" % half, *a_session(reporter))))
    assert (reporter.report().sessions, reporter.report().complete) == (2, False)


def test_report_skips_garbage_in_bounded_memory() -> None:
    reporter = Reporter()
    garbage = [b"x" * 65536, b"\n" * 65536, b"0" * 32 + b" 0 0 s" + b" 00" * 20000, bytes(range(256)) * 256]
    tracemalloc.start()
    try:
        for event in a_session(reporter):
            for _ in range(8):
                for chunk in garbage:
                    reporter.feed(chunk)
            reporter.feed(event)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * MAX_LINE
    assert reporter.report().complete


@pytest.mark.parametrize("after", [0, 1])
def test_report_is_incomplete_beyond_the_limit_of_ids(after: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(report_module, "MAX_TESTS", 3 - after)
    report = report_of(
        ("c", "t.py::test_a"), ("c", "t.py::test_b", "t.py::test_c"), ("z", "0", "0", "0", "6")
    )
    assert len(report.collected) == 3 - after
    assert report.complete is not bool(after)


def test_failure_reported_after_a_pass_counts() -> None:
    passed = ("p", "t.py::test_a")
    report = report_of(passed, ("t", "t.py::test_a", "call", "failed", "0", "f", "f", "0"), passed)
    assert report.statuses == {"t.py::test_a": "FAILED"}


@pytest.mark.parametrize(("raised", "made"), [("f", "f"), ("f", "-"), ("-", "f")])
def test_failure_reported_as_passed_is_detected(raised: str, made: str) -> None:
    report = report_of(("t", "t.py::test_a", "call", "passed", "0", raised, made, "0"))
    assert report.statuses == {"t.py::test_a": "FAILED"}
    assert report.odd == {"the call of t.py::test_a failed and is reported as passed"}


# Events of real runs


@pytest.fixture
def told(monkeypatch: Any) -> list[tuple[str, ...]]:
    """Every event that a reporter has accepted."""
    events: list[tuple[str, ...]] = []
    take = Reporter._event

    def event(self: Reporter, session: Any, kind: str, fields: list[str]) -> None:
        events.append((kind, *fields))
        take(self, session, kind, fields)

    monkeypatch.setattr(Reporter, "_event", event)
    return events


async def in_pytest(sandbox: Sandbox, text: str) -> TestRun:
    return await run(sandbox, a_suite({"test_a.py": text}), "pytest")


async def test_passed_test_is_one_event(sandbox: Sandbox, told: Any) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_n(n): pass\n"
    assert (await in_pytest(sandbox, text)).report.complete
    ids = tuple(f"test_a.py::test_n[{n}]" for n in range(9))
    assert [event for event in told if event[0] not in "sz"] == [("c", *ids), *(("p", test) for test in ids)]


async def test_other_results_are_reported_by_phase(sandbox: Sandbox, told: Any) -> None:
    text = (
        "import pytest\n@pytest.fixture\ndef breaks():\n    yield\n    1 / 0\n"
        "def test_bad(): assert 0\ndef test_teardown(breaks): pass\n"
        "@pytest.mark.xfail(strict=False)\ndef test_xpass(): pass\n"
        "def test_good(): pass\ndef test_exit(): pytest.exit('enough')\n"
    )
    assert (await in_pytest(sandbox, text)).report.complete
    phases = [(test.partition("::")[2], *rest) for kind, test, *rest in told if kind in "tp"]
    good = ("passed", "0", "-", "-", "0")
    assert phases[:10] == [
        ("test_bad", "setup", *good),
        ("test_bad", "call", "failed", "0", "f", "f", "0"),
        ("test_bad", "teardown", *good),
        ("test_teardown", "setup", *good),
        ("test_teardown", "call", *good),
        ("test_teardown", "teardown", "failed", "0", "f", "f", "0"),
        ("test_xpass", "setup", *good),
        ("test_xpass", "call", "passed", "1", "-", "-", "0"),
        ("test_xpass", "teardown", *good),
        ("test_good",),
    ]
    assert phases[10] == ("test_exit", "setup", *good)  # sent at the end


async def test_long_ids_fit_the_lines_of_the_report(sandbox: Sandbox) -> None:
    text = (
        "import pytest\n@pytest.mark.parametrize('n', range(300), ids=lambda n: f'{n}-' + 'ü' * (n * 17 % 2000))\n"
        "def test_n(n): pass\n"
    )
    report = (await in_pytest(sandbox, text)).report
    assert report.complete
    assert len(report.collected) == len(report.statuses) == 300


class AnythingElse:
    """Equal to every object."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def replace_code(space: dict[str, Any], kind: Any) -> None:
    space["one"].__code__ = (lambda: 2).__code__


CHANGES: dict[str, Callable[[dict[str, Any], Any], object]] = {
    "another function": lambda space, kind: space.update(two=lambda: 3),
    "equal to everything": lambda space, kind: space.update(number=AnythingElse()),
    "removed": lambda space, kind: space.pop("one"),
    "the code of a function": replace_code,
    "a method": lambda space, kind: setattr(kind, "run", lambda self: None),
    "a method that was removed": lambda space, kind: delattr(kind, "run"),
}


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_quick_look_detects_each_change(change: str | None, tmp_path: Path) -> None:
    inside: dict[str, Any] = {"__name__": "inside", "__file__": str(tmp_path / "inside.py")}
    exec(source("pytest"), inside)

    class Kind:  # of whose names one alone is watched
        def run(self) -> None:
            pass

    space: dict[str, Any] = {"one": lambda: 1, "two": lambda: 2, "number": 7000, "free": 1}
    entries = [
        (name, where, name, where[name], inside["makings"](where[name]))
        for where, names in ((space, ("one", "two", "number")), (vars(Kind), ("run",)))
        for name in names
    ]
    unchanged = inside["make_quick_look"](entries)
    space.update(free=2, new=3)
    assert unchanged()
    if change is not None:
        CHANGES[change](space, Kind)
    assert unchanged() is (change is None)
    assert unchanged() is (not inside["replaced"](entries))


def test_internal_error_is_reported_and_the_run_continues() -> None:
    inside: dict[str, Any] = {"__name__": "inside", "__file__": "inside.py"}
    exec(source("pytest"), inside)
    told: list[str] = []

    def compare(item: object) -> object:
        return {"an item": 1}[str(item)]

    function = inside["guarded"](told.append, compare)
    assert function("an item") == 1
    assert function("another") is None
    assert told == ["KeyError in compare"]


def test_both_ends_share_descriptor_and_prime() -> None:
    inside: dict[str, Any] = {"__name__": "inside"}
    exec((resources.files("swe_core.builtin.swe") / "reporter" / "common.py").read_text(), inside)
    assert inside["FD"] == report_module.FD
    assert inside["PRIME"] == PRIME
