"""Test logs are read right: real ones of pytest and unittest, generated ones, and garbage."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
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
    printed,
    shortened,
    statuses,
)
from swe_core.errors import TaskError

from ...repositories import slow_but

OURS = ("pytest", "unittest", "django", "r2e")

PROGRAMS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("log_programs.toml").read_text())


def run(directory: Path, program: Mapping[str, Any], more: str = "") -> bytes:
    """Return the log of a program, to whose command `more` is added."""
    for name, text in program["files"].items():
        (directory / name).write_text(text)
    env = os.environ | ({} if "-n" in more else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    argv = [sys.executable, *program["command"].split(), *more.split()]
    return subprocess.run(
        argv, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    ).stdout


@pytest.mark.parametrize("more", slow_but(["-vv"], ["", "--color=yes", "-vv", "--tb=no -q", "-n2"]))
def test_parser_reads_real_pytest_logs(tmp_path: Path, more: str) -> None:
    found = parse_pytest(run(tmp_path, PROGRAMS["pytest"], more))
    by_id = {"test_p.py::test_skip": "SKIPPED"} if more == "-vv" else {}
    assert found == {**PROGRAMS["pytest"]["results"], **by_id}


def test_parser_reads_real_unittest_log(tmp_path: Path) -> None:
    assert parse_unittest(run(tmp_path, PROGRAMS["unittest"])) == PROGRAMS["unittest"]["results"]


PYTEST_LOG = b"= short test summary info =\n"
CASES: list[tuple[str, bytes, dict[str, str]]] = [
    ("pytest", PYTEST_LOG + b"XPASS t.py::a because of this\nXFAIL t.py::b\n  reason: NOTRUN\n"
     b"SKIPPED [2] t.py:3: no - thing\nSKIPPED [1] lib/t.py: unconditional\nERROR t.py\n",
     {"t.py::a": "XPASS", "t.py::a because of this": "XPASS", "t.py::b": "XFAIL", "t.py:3": "SKIPPED",
      "lib/t.py": "SKIPPED", "t.py": "ERROR"}),
    ("pytest", b"t.py::test_a PASSED [ 50%]\nt.py::test_b ", {}),  # truncated
    # Without -rA: a verbose run that came to its end.
    ("pytest", b"t.py::a PASSED [ 50%]\nt.py::a ERROR [ 50%]\nt.py::b[x y] PASSED\nt.py::c SKIPPED (no)\n"
     + PYTEST_LOG + b"ERROR t.py::a - no\n== 2 passed, 1 skipped, 1 error in 0.12s (0:01:02) ==\n+ : end\n",
     {"t.py::a": "ERROR", "t.py::b[x y]": "PASSED", "t.py::c": "SKIPPED"}),
    ("pytest", b"t.py::a PASSED   [100%]\nResults (0.77s):\n       1 passed\n+ : end\n",
     {"t.py::a": "PASSED"}),
    ("pytest", b"t.py::a PASSED\n" + PYTEST_LOG + b"PASSED t.py::b\n== 1 passed in 0.1s ==\n",
     {"t.py::b": "PASSED"}),
    ("unittest", b"test_a (m.C) ... ok\ntest_b (m.C)\nSays what ... ok\n"
     b"test_sub (m.C) ... test_next (m.C) ... ok\ntest_last (m.C) ... \r\nprinted\nok\n"
     b"======\nFAIL: test_sub (m.C) (i=1)\n------\n",
     {"m.C.test_a": "PASSED", "m.C.test_b": "PASSED", "m.C.test_sub": "FAILED", "m.C.test_next": "PASSED",
      "m.C.test_last": "PASSED"}),
    # A docstring of several tests has the worst status of them.
    ("django", b"test_a (m.C)\nSaid. ... ok\ntest_b (m.C)\nSaid. ... FAIL\ntest_c (m.C)\nSaid. ... ok\n",
     {"m.C.test_a": "PASSED", "m.C.test_b": "FAILED", "m.C.test_c": "PASSED", "Said.": "FAILED"}),
    ("django", b"test_a (m.C)\nSaid. ... ok\n\nERROR: test_a (m.C)\nSaid.\n",
     {"m.C.test_a": "ERROR", "Said.": "ERROR"}),
    ("r2e", PYTEST_LOG + b"PASSED r2e_tests/test_1.py::test_a\n"
     b"PASSED r2e_tests/test_1.py::TestB::test_c[x::y]\nSKIPPED [1] r2e_tests/test_1.py:3: why\n"
     b"XFAIL r2e_tests/test_1.py::test_d\nERROR r2e_tests/test_2.py\n"
     b"FAILED r2e_tests/test_1.py::test_e - AssertionError: PASSED x::y\n"
     b"FAILED r2e_tests/test_2.py::test_a\n= 3 failed =\n",
     {"test_a": "FAILED", "TestB.test_c[x.y]": "PASSED", "": "ERROR", "test_e": "FAILED"}),
    ("swebench:parse_log_sympy", b"test_early ok\n+ : '>>>>> Start Test Output'\ntest_a ok\ntest_b F\n",
     {"test_a": "PASSED", "test_b": "FAILED"}),
    ("swebench:parse_log_sympy", b"test_a ok\ntest_c E\n", {"test_a": "PASSED", "test_c": "ERROR"}),
    ("swebench:parse_log_sympy", b"test_a ok              [OK]\ntest_c F    [FAIL]\n",
     {"test_a": "PASSED", "test_c": "FAILED"}),
    ("swebench:parse_log_jest_json", b"{\xff not JSON", {}),
]  # fmt: skip


@pytest.mark.parametrize(("parser", "log", "results"), CASES)
def test_parser_reads_a_log(parser: str, log: bytes, results: dict[str, str]) -> None:
    if parser.startswith("swebench"):
        pytest.importorskip("swebench")
    assert log_reader(parser).parse(log) == results


IDS: list[tuple[str, str, dict[str, str]]] = [
    ("unittest", "test_a (m.C.test_a) ... ok\n",
     {"test_a (m.C)": "PASSED", "test_a (m.C.test_a)": "PASSED", "m.C.test_a": "PASSED",
      "test_b (m.C)": "MISSING"}),
    # Ids that are cut at a blank match by their start.
    ("pytest", "PASSED t.py::a[x y]\nFAILED t.py::a[x z] - no\nPASSED t.py::a[xx w]\nPASSED t.py::b c\n"
     "PASSED t.py::d[long]\n",
     {"t.py::a[x": "FAILED", "t.py::a[xx": "PASSED", "t.py::a": "MISSING", "t.py::b": "PASSED",
      "t.py::a[x y]": "PASSED", "t.py::d[lo": "PASSED", "t.py::d[lo]": "MISSING"}),
    # Those of several tests: a skipped one says nothing, for its log had no id of it.
    ("pytest", "PASSED t.py::a[x y]\nSKIPPED t.py::a[x z]: no\nPASSED t.py::a[xx w]\n"
     "FAILED t.py::c[y z] - no\nSKIPPED t.py::e[y z]: no\n",
     {"t.py::a[x": "PASSED", "t.py::a[": "PASSED", "t.py::c[": "FAILED", "t.py::e[y": "SKIPPED"}),
    # Data sets spell some parameters in their own way.
    ("pytest", "PASSED t.py::a[/tmp/x/file.py]\nPASSED t.py::b[//host/x]\nPASSED t.py::c[/*/x]\n"
     "PASSED t.py::d[MouseButton.LEFT-MouseButton.RIGHT]\n",
     {"t.py::a[/file.py]": "PASSED", "t.py::a[/tmp/x/file.py]": "PASSED", "t.py::a[/x/file.py]": "MISSING",
      "t.py::b[/x]": "MISSING", "t.py::c[/x]": "MISSING", "t.py::d[1-3]": "PASSED"}),
    ("pytest", "PASSED t.py::a[x  y]\nPASSED t.py::b[c\u3000d]\nPASSED t.py::c[x\ty\x7f]\n"
     "PASSED t.py::d[1m-x]\nPASSED t.py::e[x - y]\n"
     "PASSED t.py::f[MouseButton.LEFT x]\nPASSED t.py::g[x]y z\n",
     {"t.py::a[x y]": "PASSED", "t.py::b[c d]": "PASSED", "t.py::b[c": "PASSED", "t.py::c[xy\x7f]": "PASSED",
      "t.py::d-x]": "PASSED", "t.py::e[x": "PASSED", "t.py::f[1": "PASSED", "t.py::g[x]": "PASSED"}),
]  # fmt: skip


def test_ids_of_data_sets_find_their_results() -> None:
    for parser, log, results in IDS:
        found = log_reader(parser).parse(PYTEST_LOG * (parser == "pytest") + log.encode())
        assert statuses(parser, found, results) == results


ODD = [
    "t.py::a[x  y]", "t.py::b[c\u3000d]", "t.py::c[x\ty\x1fz]", "t.py::d[1m-x]", "t.py::e[x - y]", "t.py::é",
    "t.py::f[MouseButton.RIGHT-MouseButton.LEFT x]", "t.py::g[/a/b/c.py]tail", "t.py::h[/a/b c/d]",
    "t.py::i[[x]]", "t.py::j[]", "t.py::k[x] - y", "t.py::l [100%]", "my tests/t.py::m", "t.py::n[//a/b]",
    "t.py::o[/a/*/b]", "t.py::p[\x1b[31mred\x1b[0m]", "t.py::q[PASSED]", "t.py::T::s[FAILED x]", "t.rst::t",
]  # fmt: skip


def test_ids_of_data_sets_are_those_of_their_parsers() -> None:
    """The names that swebench's parsers give to passed tests find them."""
    pytest.importorskip("swebench")
    log = "".join(f"PASSED {test}\n" for test in ODD).encode()
    found: dict[str, Any] = dict.fromkeys(ODD, "PASSED")
    for name in sorted(swebench_parsers.PYTEST_PARSERS):
        theirs = log_reader(f"swebench:{name}").parse(log)
        assert len(theirs) > 5
        assert statuses("pytest", found, theirs) == theirs, name


def test_printed_names_are_found_as_their_parsers_do() -> None:
    log = (
        "x.py::a PASSED             [100%]\nPASSED      [100%]\nPASSED [ 50%]\nPASSED [100%]-----\n"
        "a.py::b PASSED\nSKIPPED [1] a.py:3: no\nPASSED late\nFAILED late - no\nprogress of it XFAIL\n"
    )
    names = dict.fromkeys(("[100%]", "[", "[100%]-----", "a.py::b", "x.py::a"), "PASSED")
    names |= {"late": "FAILED", "progress of it": "XFAIL"}
    assert printed("pytest", log.encode(), {*names, "gone"}) == names
    log = "A test ... with dots ... ok\nOther ... OK\nNo ... FAIL\nWhy ... skipped 'a ... b'\n"
    names = {"A test ... with dots": "PASSED", "Other": "PASSED", "No": "FAILED"}
    assert printed("django", log.encode(), names) == names


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
        shapes = (
            f" ... {word}\n",
            f"\nA docstring. ... {word}\n",
            f" ... printed\n{word}\n",
            f" ... \n  printed FAIL\nmore ok\n{word}\n",
        )
        log += head + shapes[shape]
    found = parse_unittest(log.encode())
    assert found == {f"{where}.{name}": status for (name, where), ((_, status), _) in results.items()}


@given(st.binary(), st.binary(), st.sampled_from(OURS))
def test_parsers_accept_garbage(start: bytes, end: bytes, parser: Any) -> None:
    for middle in (b"", b"\n= short test summary info =\n", b"FAILED t.py::a[", b"test_a (m.C) ... ok\n"):
        found = log_reader(parser).parse(start + middle + end)
        statuses(parser, found, ["t.py::a[", "m.C.test_a"])
        printed(parser, start + middle + end, ["t.py::a["])


# Django, R2E-Gym, the names of data sets, and the package swebench


def test_django_parser_agrees_with_swebench(tmp_path: Path) -> None:
    """What swebench's own parser finds in a real log, ours finds by the same names."""
    log = run(tmp_path, PROGRAMS["django"])
    found = log_reader("django").parse(log)
    pytest.importorskip("swebench")
    theirs = log_reader("swebench:parse_log_django").parse(log)
    names = {name: how for name, how in theirs.items() if name != "test_said_and_failed"}  # of "FAIL: …"
    assert len(names) >= 6
    names.pop("test_error", None)
    assert statuses("django", found, names) == names
    assert found["It does what it says."] == found["tests.Tests.test_said"] == "PASSED"
    assert found["A docstring that starts on its second line"] == "FAILED"
    assert "It does what it says." not in parse_unittest(log)


NODES = {
    "r2e_tests/test_2.py::test_a": "FAILED",
    "r2e_tests/test_1.py::test_a": "PASSED",
    "r2e_tests/test_1.py::TestB::test_c[x::y]": "PASSED",
    "r2e_tests/test_1.py::test_d": "XFAIL",
    "r2e_tests/test_2.py": "ERROR",
}
BUTTONS = {"t.py::a[MouseButton.LEFT-x y]": "PASSED", "t.py::b": "FAILED", "t.py::c": "XPASS"}
NAMES = {"t.Case.test_a": "PASSED"}


@pytest.mark.parametrize(
    ("parser", "runner", "told", "named"),
    [
        ("pytest", "pytest", BUTTONS, BUTTONS),
        ("unittest", "unittest", NAMES, NAMES),
        ("django", "unittest", NAMES, NAMES),
        ("r2e", "pytest", NODES, {"test_a": "FAILED", "TestB.test_c[x.y]": "PASSED", "": "ERROR"}),
        ("swebench:parse_log_matplotlib", "pytest", BUTTONS, {"t.py::a[1-x": "PASSED", "t.py::b": "FAILED"}),
        ("swebench:parse_log_sympy", "pytest", BUTTONS, None),
    ],
)
def test_log_reader_renames_reporter_results(
    parser: str, runner: str, told: dict[str, Any], named: dict[str, str] | None
) -> None:
    if parser.startswith("swebench"):
        pytest.importorskip("swebench")
    reader = log_reader(parser)
    assert (reader.rename(told), reader.runner) == (named, runner)


def test_unknown_log_reader_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="unknown log parser 'tap'; there are: pytest, unittest, django, r2e"):
        log_reader("tap")
    if swebench_parsers.find_spec("swebench"):
        with pytest.raises(TaskError, match="'parse_log_sympi'; did you mean 'parse_log_sympy'"):
            log_reader("swebench:parse_log_sympi")
    monkeypatch.setattr(swebench_parsers, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"is not installed: pip install 'swe-core\[swebench\]'"):
        log_reader("swebench:parse_log_redis")


LONG = (
    "FAILED a" + "[" * 8000 + "] - " * 2000,
    "PASSED a[/" + "x" * 16_000,
    "a::b" + "::" * 2000 + " SKIPPED (" * 1000,
    "test_a (b.C) ... " + "... skipped '" * 1200 + '"',
    "short test summary info" * 700,
)


@pytest.mark.parametrize("name", OURS)
def test_parsers_take_linear_time_on_long_lines(name: str) -> None:
    """A parser that is quadratic in the length of a line would take an hour."""
    for line in LONG:
        log = f"=== short test summary info ===\n{line * 60}\n".encode() + f"{line}\n".encode() * 60
        found = log_reader(name).parse(shortened(log))
        assert statuses(name, found, ["a::b"])["a::b"] == "MISSING"
        assert printed(name, shortened(log), ["a::c"]) == {}
        assert max(map(len, shortened(log).split(b"\n"))) == LONGEST_LINE
