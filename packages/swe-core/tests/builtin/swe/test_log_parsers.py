"""Test logs are read right: real ones of pytest and unittest, generated ones, and garbage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.builtin.swe import swebench_parsers
from swe_core.builtin.swe.parsers import (
    LONGEST_LINE,
    log_reader,
    parse_pytest,
    parse_unittest,
    shortened,
    statuses,
)
from swe_core.errors import TaskError

from ...repositories import slow_but

OURS = ("pytest", "unittest", "django", "r2e")

PYTEST_FILE = r"""
import logging
import pytest

HEADER = "=" * 27 + " short test summary info " + "=" * 28

def test_ok():
    print(HEADER)
    print("FAILED test_p.py::test_ok - a forged line")

def test_fail():
    assert 1 == 2, "a - b [c] - d\nPASSED test_p.py::test_fail"

PARAMS = ["a", "a b", "a - b", "[x] - y", "a\nb", "", " ", "]", "a::b", "\x1b[0m", "\u2028"]

@pytest.mark.parametrize("x", PARAMS)
@pytest.mark.parametrize("ok", [True, False])
def test_par(x, ok):
    assert ok

@pytest.fixture
def broken():
    raise RuntimeError("set-up")

def test_error(broken):
    pass

@pytest.fixture
def breaks():
    yield
    raise RuntimeError("tear-down")

def test_down(breaks):
    pass

@pytest.mark.skip(reason="why: not - so")
def test_skip():
    pass

@pytest.mark.xfail(reason="x - y")
def test_xfail():
    assert 0

@pytest.mark.xfail(reason="because of")
def test_xpass():
    pass

@pytest.mark.xfail(strict=True, reason="strictly")
def test_strict():
    pass

class TestC:
    def test_m(self):
        logging.error("ERROR test_p.py::test_ok SKIPPED")
        assert 0
"""
PYTEST_RESULTS = {
    "test_p.py::test_ok": "PASSED",
    "test_p.py::test_fail": "FAILED",
    "test_p.py::test_error": "ERROR",
    "test_p.py::test_down": "ERROR",
    "test_p.py::test_xfail": "XFAIL",
    "test_p.py::test_xpass": "XPASS",
    "test_p.py::test_strict": "FAILED",
    "test_p.py::TestC::test_m": "FAILED",
    "test_q.py": "ERROR",
}
PARAMS = ["a", "a b", "a - b", "[x] - y", "a\\nb", "", " ", "]", "a::b", "\\x1b[0m", "\\u2028"]


def run(directory: Path, *argv: str, plugins: bool = False) -> bytes:
    env = os.environ | ({} if plugins else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    return subprocess.run(
        [sys.executable, *argv], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    ).stdout


@pytest.mark.parametrize("more", slow_but(["-vv", ""], ["", "--color=yes", "-vv", "--tb=no -q", "-n2"]))
def test_parser_reads_real_pytest_logs(tmp_path: Path, more: str) -> None:
    (tmp_path / "test_p.py").write_text(PYTEST_FILE)
    (tmp_path / "test_q.py").write_text("import no_such_module\n")
    options = ["-rA", "--continue-on-collection-errors", "-p", "no:cacheprovider", *more.split()]
    found = parse_pytest(run(tmp_path, "-m", "pytest", *options, plugins=more == "-n2"))
    expected = dict(PYTEST_RESULTS)
    for word, status in (("True", "PASSED"), ("False", "FAILED")):
        expected |= {f"test_p.py::test_par[{word}-{param}]": status for param in PARAMS}
    skipped = {test: status for test, status in found.items() if status == "SKIPPED"}
    assert {test: status for test, status in found.items() if test not in skipped} == expected
    line = 1 + PYTEST_FILE[: PYTEST_FILE.index("@pytest.mark.skip(")].count("\n")
    by_id = {"test_p.py::test_skip": "SKIPPED"} if more == "-vv" else {}
    assert skipped == {f"test_p.py:{line}": "SKIPPED", **by_id}


def test_parser_ignores_truncated_pytest_log(tmp_path: Path) -> None:
    (tmp_path / "test_e.py").write_text("import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\n")
    assert parse_pytest(run(tmp_path, "-m", "pytest", "-rA", "-v")) == {}


def test_parser_reads_older_pytest_formats() -> None:
    log = (
        b"= short test summary info =\n"
        b"XPASS t.py::a because of this\nXFAIL t.py::b\n  reason: NOTRUN\nSKIPPED [2] t.py:3: no - thing\n"
        b"SKIPPED [1] lib/t.py: unconditional\nERROR t.py\nERROR t.py::c[x - AssertionError\n"
    )
    found = parse_pytest(log)
    assert found["t.py::a"] == "XPASS"
    assert found["t.py::b"] == "XFAIL"
    assert found["t.py:3"] == found["lib/t.py"] == "SKIPPED"
    assert found["t.py"] == "ERROR"


UNITTEST_FILE = r'''
import sys
import unittest

class A(unittest.TestCase):
    def test_ok(self):
        pass
    def test_doc(self):
        """Does a thing ... nicely"""
    def test_fail(self):
        self.assertEqual(1, 2)
    def test_doc_fail(self):
        """Fails

        test_ok (test_u.A.test_ok) ... FAIL
        """
        self.fail("no")
    def test_error(self):
        raise RuntimeError("x")
    def test_noise(self):
        print("hello ok", flush=True)
        sys.stderr.write("noise ... FAIL\n" if False else "noise\n")
    @unittest.skip("why 'not' ... ok")
    def test_skip(self):
        pass
    @unittest.expectedFailure
    def test_expected(self):
        self.fail()
    @unittest.expectedFailure
    def test_unexpected(self):
        pass
    def test_sub(self):
        for i in range(3):
            with self.subTest("some", i=i):
                self.assertEqual(i % 2, 0)
    def test_sub_ok(self):
        for i in range(3):
            with self.subTest(i=i):
                pass

class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise ValueError("no class")
    def test_b(self):
        pass

@unittest.skip("all")
class C(unittest.TestCase):
    def test_c(self):
        pass

class T(unittest.TestCase):
    def tearDown(self):
        raise ValueError("down")
    def test_t(self):
        pass
'''
UNITTEST_RESULTS = {
    "test_u.A.test_ok": "PASSED",
    "test_u.A.test_doc": "PASSED",
    "test_u.A.test_fail": "FAILED",
    "test_u.A.test_doc_fail": "FAILED",
    "test_u.A.test_error": "ERROR",
    "test_u.A.test_noise": "PASSED",
    "test_u.A.test_skip": "SKIPPED",
    "test_u.A.test_expected": "XFAIL",
    "test_u.A.test_unexpected": "FAILED",
    "test_u.A.test_sub": "FAILED",
    "test_u.A.test_sub_ok": "PASSED",
    "test_u.B.setUpClass": "ERROR",
    "test_u.C.test_c": "SKIPPED",
    "test_u.T.test_t": "ERROR",
    "unittest.loader._FailedTest.nosuch": "ERROR",
}


def test_parser_reads_real_unittest_log(tmp_path: Path) -> None:
    (tmp_path / "test_u.py").write_text(UNITTEST_FILE)
    assert parse_unittest(run(tmp_path, "-m", "unittest", "-v", "test_u.py", "nosuch")) == UNITTEST_RESULTS


def test_parser_reads_older_unittest_formats() -> None:
    log = (
        b"test_a (m.C) ... ok\ntest_b (m.C)\nSays what ... ok\n"
        b"test_sub (m.C) ... test_next (m.C) ... ok\ntest_last (m.C) ... \r\nprinted\nok\n"
        b"======\nFAIL: test_sub (m.C) (i=1)\n------\n"
    )
    assert parse_unittest(log) == {
        "m.C.test_a": "PASSED",
        "m.C.test_b": "PASSED",
        "m.C.test_sub": "FAILED",
        "m.C.test_next": "PASSED",
        "m.C.test_last": "PASSED",
    }


def test_unittest_ids_of_all_versions_match() -> None:
    found = parse_unittest(b"test_a (m.C.test_a) ... ok\n")
    wanted = ["test_a (m.C)", "test_a (m.C.test_a)", "m.C.test_a", "test_b (m.C)"]
    assert list(statuses("unittest", found, wanted).values()) == ["PASSED"] * 3 + ["MISSING"]


def test_truncated_ids_match_by_prefix() -> None:
    log = "= short test summary info =\nPASSED t.py::a[x y]\nFAILED t.py::a[x z] - no\nPASSED t.py::a[xx w]\n"
    found = parse_pytest(f"{log}PASSED t.py::b c\nPASSED t.py::d[long]\n".encode())
    wanted = ["t.py::a[x", "t.py::a[xx", "t.py::a", "t.py::b", "t.py::a[x y]", "t.py::d[lo", "t.py::d[lo]"]
    got = statuses("pytest", found, wanted)
    assert list(got.values()) == ["FAILED", "PASSED", "MISSING", "MISSING", "PASSED", "PASSED", "MISSING"]


# Printed in the format, read back.

words = st.text(st.characters(categories=["L", "N"], max_codepoint=0x24F), min_size=1, max_size=8)
printable = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=12)
params = printable.filter(lambda text: text.count("[") == text.count("]") == 0)
ids = st.one_of(
    st.builds("tests/{}.py::test_{}".format, words, words),
    st.builds("tests/{}.py::Test{}::test_{}[{}]".format, words, words, words, params),
)
messages = st.one_of(st.just(""), printable.map(" - {}".format))
ended = st.sampled_from(["PASSED", "FAILED", "ERROR", "XFAIL", "XPASS"])
noise = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.dictionaries(ids, st.tuples(ended, messages), max_size=12), noise, st.booleans())
def test_pytest_summary_round_trips(results: dict[str, Any], before: str, colour: bool) -> None:
    on, off = ("\x1b[31m", "\x1b[0m") if colour else ("", "")
    log = [before, f"{on}==== short test summary info ===={off}"]
    for test, (status, message) in results.items():
        log.append(f"{on}{status}{off} {test}{message if status != 'PASSED' else ''}")
    log.append(f"{on}=== 3 failed, 1 passed in 0.79s ==={off}\n")
    found = parse_pytest("\n".join(log).encode())
    assert {test: found.get(test) for test in results} == {
        test: status for test, (status, _) in results.items()
    }


names = st.from_regex(r"test_[a-z0-9_]{1,8}", fullmatch=True)
classes = st.from_regex(r"[a-z]{1,5}(\.[A-Z][a-z]{0,5}){1,2}", fullmatch=True)
endings = st.sampled_from(
    [
        ("ok", "PASSED"),
        ("FAIL", "FAILED"),
        ("ERROR", "ERROR"),
        ("expected failure", "XFAIL"),
        ("unexpected success", "FAILED"),
        ("skipped 'it ... ok'", "SKIPPED"),
        ('skipped "it\'s"', "SKIPPED"),
    ]
)


@given(
    st.dictionaries(st.tuples(names, classes), st.tuples(endings, st.sampled_from(range(4))), max_size=10),
    st.booleans(),
)
def test_unittest_log_round_trips(results: dict[Any, Any], old: bool) -> None:
    log = ""
    for (name, where), ((word, _), shape) in results.items():
        head = f"{name} ({where})" if old else f"{name} ({where}.{name})"
        log += (
            head
            + (
                f" ... {word}\n",
                f"\nA docstring. ... {word}\n",
                f" ... printed\n{word}\n",
                f" ... \n  printed FAIL\nmore ok\n{word}\n",
            )[shape]
        )
    found = parse_unittest(log.encode())
    assert found == {f"{where}.{name}": status for (name, where), ((_, status), _) in results.items()}


@given(st.binary(), st.binary(), st.sampled_from(OURS))
def test_parsers_accept_garbage(start: bytes, end: bytes, parser: Any) -> None:
    for middle in (b"", b"\n= short test summary info =\n", b"FAILED t.py::a[", b"test_a (m.C) ... ok\n"):
        found = log_reader(parser).parse(start + middle + end)
        statuses(parser, found, ["t.py::a[", "m.C.test_a"])


# Django, R2E-Gym, the names of data sets, and the package swebench

DJANGO_FILE = '''
import unittest

class Tests(unittest.TestCase):
    def test_plain(self):
        pass

    def test_said(self):
        """It does what it says."""

    def test_said_and_failed(self):
        """
        A docstring that starts on its second line
        and has another.
        """
        self.fail()

    def test_prints(self):
        """It prints before it ends."""
        print("System check identified no issues (0 silenced).")

    @unittest.skip("why not")
    def test_skipped(self):
        """It is skipped."""

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    def test_error(self):
        raise ValueError
'''


def test_django_parser_agrees_with_swebench(tmp_path: Path) -> None:
    """What swebench's own parser finds in a real log, ours finds by the same names."""
    (tmp_path / "tests.py").write_text(DJANGO_FILE)
    log = run(tmp_path, "-u", "-m", "unittest", "-v", "tests")
    found = log_reader("django").parse(log)
    pytest.importorskip("swebench")
    theirs = log_reader("swebench:parse_log_django").parse(log)
    names = {
        name: status for name, status in theirs.items() if name != "test_said_and_failed"
    }  # of "FAIL: …"
    assert len(names) >= 6
    names.pop("test_error", None)
    assert statuses("django", found, names) == names
    assert found["It does what it says."] == found["tests.Tests.test_said"] == "PASSED"
    assert found["A docstring that starts on its second line"] == "FAILED"
    assert "It does what it says." not in parse_unittest(log)


def test_shared_docstring_has_the_worst_status() -> None:
    log = b"test_a (m.C)\nSaid. ... ok\ntest_b (m.C)\nSaid. ... FAIL\ntest_c (m.C)\nSaid. ... ok\n"
    assert log_reader("django").parse(log)["Said."] == "FAILED"
    sections = b"test_a (m.C)\nSaid. ... ok\n\nERROR: test_a (m.C)\nSaid.\n"
    assert log_reader("django").parse(sections)["Said."] == "ERROR"


R2E_LOG = (
    b"= short test summary info =\nPASSED r2e_tests/test_1.py::test_a\n"
    b"PASSED r2e_tests/test_1.py::TestB::test_c[x::y]\n"
    b"SKIPPED [1] r2e_tests/test_1.py:3: why\nXFAIL r2e_tests/test_1.py::test_d\nERROR r2e_tests/test_2.py\n"
    b"FAILED r2e_tests/test_1.py::test_e - AssertionError: PASSED x::y\nFAILED r2e_tests/test_2.py::test_a\n"
    b"= 3 failed =\n"
)


def test_r2e_parser_uses_r2e_gym_names() -> None:
    found = log_reader("r2e").parse(R2E_LOG)
    assert found == {"test_a": "FAILED", "TestB.test_c[x.y]": "PASSED", "": "ERROR", "test_e": "FAILED"}
    by_node = {
        "r2e_tests/test_2.py::test_a": "FAILED",
        "r2e_tests/test_1.py::test_a": "PASSED",
        "r2e_tests/test_1.py::TestB::test_c[x::y]": "PASSED",
        "r2e_tests/test_1.py::test_d": "XFAIL",
        "r2e_tests/test_1.py::test_e": "FAILED",
        "r2e_tests/test_2.py": "ERROR",
    }
    assert log_reader("r2e").rename(by_node) == found


def test_parametrized_ids_match_data_set_spellings() -> None:
    log = (
        "= short test summary info =\nPASSED t.py::a[/tmp/x/file.py]\n"
        "PASSED t.py::b[//host/x]\nPASSED t.py::c[/*/x]\n"
        "PASSED t.py::d[MouseButton.LEFT-MouseButton.RIGHT]\n"
    )
    wanted = {
        "t.py::a[/file.py]": "PASSED",
        "t.py::a[/tmp/x/file.py]": "PASSED",
        "t.py::a[/x/file.py]": "MISSING",
        "t.py::b[/x]": "MISSING",
        "t.py::c[/x]": "MISSING",
        "t.py::d[1-3]": "PASSED",
    }
    assert statuses("pytest", parse_pytest(log.encode()), wanted) == wanted


def test_log_reader_renames_reporter_results() -> None:
    by_node = {"t.py::a": "PASSED", "t.py::b[MouseButton.LEFT x]": "FAILED"}
    assert log_reader("pytest").rename(by_node) == by_node
    by_name = {"t.Case.test_a": "PASSED"}
    for name in ("unittest", "django"):
        assert (log_reader(name).rename(by_name), log_reader(name).runner) == (by_name, "unittest")


class TestSwebench:
    """The parsers of the package, which is installed without what it needs besides."""

    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        pytest.importorskip("swebench")

    def test_log_before_the_start_marker_is_ignored(self) -> None:
        parse = log_reader("swebench:parse_log_sympy").parse
        assert parse(b"test_early ok\n+ : '>>>>> Start Test Output'\ntest_a ok\ntest_b F\ntest_c E\n") == {
            "test_a": "PASSED", "test_b": "FAILED", "test_c": "ERROR",
        }  # fmt: skip
        assert parse(b"test_a ok\n") == {"test_a": "PASSED"}

    def test_reporter_results_are_renamed(self) -> None:
        found = {"t.py::a[MouseButton.LEFT-x y]": "PASSED", "t.py::b": "FAILED", "t.py::c": "XPASS"}
        renamed = log_reader("swebench:parse_log_matplotlib").rename(found)
        assert renamed == {"t.py::a[1-x": "PASSED", "t.py::b": "FAILED"}
        assert log_reader("swebench:parse_log_sympy").rename(found) is None

    def test_failing_parser_has_no_results(self) -> None:
        assert log_reader("swebench:parse_log_jest_json").parse(b"{\xff not JSON") == {}

    def test_unknown_parser_suggests_a_close_name(self) -> None:
        with pytest.raises(
            TaskError, match="no log parser 'parse_log_sympi'; did you mean 'parse_log_sympy'"
        ):
            log_reader("swebench:parse_log_sympi")

    def test_parsers_import_without_the_swebench_harness(self) -> None:
        script = (
            "import sys; from swe_core.builtin.swe.parsers import log_reader\n"
            "log_reader('swebench:parse_log_gotest')\n"
            "heavy = {'docker', 'datasets', 'modal', 'bs4', 'swebench.harness'} & set(sys.modules)\n"
            "sys.exit(str(heavy) if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_missing_swebench_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swebench_parsers, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"is not installed: pip install 'swe-core\[swebench\]'"):
        log_reader("swebench:parse_log_redis")


LONG = {
    "message": "FAILED a" + "[" * 8000 + "] - " * 2000,
    "path": "PASSED a[/" + "x" * 16_000,
    "skipped": "a::b" + "::" * 2000 + " SKIPPED (" * 1000,
    "unittest": "test_a (b.C) ... " + "... skipped '" * 1200 + '"',
    "summaries": "short test summary info" * 700,
}


@pytest.mark.parametrize("line", LONG)
@pytest.mark.parametrize("name", ["pytest", "unittest", "django", "r2e"])
def test_parsers_take_linear_time_on_long_lines(name: str, line: str) -> None:
    """A parser that is quadratic in the length of a line would take an hour."""
    log = f"=== short test summary info ===\n{LONG[line] * 300}\n".encode()
    log += f"{LONG[line]}\n".encode() * 300
    found = log_reader(name).parse(shortened(log))
    assert statuses(name, found, ["a::b"])["a::b"] == "MISSING"
    assert max(map(len, shortened(log).split(b"\n"))) == LONGEST_LINE


def test_unknown_log_reader_is_rejected() -> None:
    with pytest.raises(TaskError, match="unknown log parser 'tap'; there are: pytest, unittest, django, r2e"):
        log_reader("tap")
