"""What speaks against a run, by what the reporter and the log say."""

from __future__ import annotations

from typing import Any

from swe_core.builtin.swe.report import Report
from swe_core.builtin.swe.run_tests import TestRun
from swe_core.builtin.swe.verdict import read
from swe_testing.records import make_task

A, B = "t.py::test_a", "t.py::test_b"
HEAD = "=== short test summary info ===\n"
WHOLE = f"{HEAD}PASSED {A}\nPASSED {B}\n"


def passed(*tests: str, **more: Any) -> Report:
    """The report of a session in which these tests passed."""
    return Report(sessions=1, complete=True, exit_status=0, statuses=dict.fromkeys(tests, "PASSED"), **more)


def doubts(log: str, report: Report | None = None, exit_code: int = 0) -> list[str]:
    """What speaks against a run in which both tests passed; what is forged begins with `!`."""
    task = make_task(fail_to_pass=(A,), pass_to_pass=(B,))
    reading = read(task, TestRun(exit_code, log.encode(), 1.0, report or passed(A, B)))
    return [f"{'!' * doubt.forged}{doubt.key}" for doubt in reading.discrepancies]


def test_verdict_requires_passed_tests_in_the_log() -> None:
    assert doubts(WHOLE) == doubts(f"{HEAD}PASSED {A}\nin a thread: PASSED {B}\n") == []
    assert doubts(f"{HEAD}PASSED {A}\n") == [f"!not in the log: {B}"]
    assert doubts(f"{HEAD}PASSED {A}\nFAILED {B} - no\n") == [f"!log FAILED: {B}"]
    assert doubts("") == ["!no log"]


def test_verdict_accepts_unittest_results_hidden_by_output() -> None:
    """Also of a test that the data set names as older versions of unittest do."""
    task = make_task(fail_to_pass=("a (m.A)",), pass_to_pass=("m.A.b",), log_parser="unittest")
    log = b"a (m.A.a) ... ok\nb (m.A.b) ... said without a line endok\n"
    reading = read(task, TestRun(0, log, 1.0, passed("m.A.a", "m.A.b")))
    assert (reading.discrepancies, reading.fail_to_pass) == ((), {"a (m.A)": "PASSED"})


def test_verdict_distinguishes_crash_from_forgery() -> None:
    for code, said in ((139, "exit code 139"), (137, "exit code 137"), (3, "!exit code 3")):
        assert doubts(WHOLE, Report(), code) == ["no session", said]


def test_verdict_ignores_discrepancies_of_the_reference() -> None:
    task = make_task(fail_to_pass=(A,), pass_to_pass=(B,))
    report = passed(A, B, remote=True)
    assert doubts(WHOLE, report) == ["!the tests ran in other processes"]
    reading = read(task, TestRun(0, WHOLE.encode(), 1.0, report)).with_changed(["data.txt", ""])
    assert [doubt.sentence for doubt in reading.discrepancies][1:] == [
        "data.txt was changed while the tests ran",
        "the files of the tests cannot be read again",
    ]
    assert reading.beyond(reading) == []


def test_verdict_counts_names_that_no_test_has_as_their_parser_did() -> None:
    """Progress taken for a test. The log alone may say it where the reference's log says it too."""
    printed = f"PASSED      [100%]\n{WHOLE}"
    task = make_task(fail_to_pass=(A,), pass_to_pass=(B, "[100%]"))
    reading = read(task, TestRun(0, printed.encode(), 1.0, passed(A, B)))
    assert (reading.problems, reading.phantoms) == ((), {"[100%]"})
    assert [doubt.key for doubt in reading.discrepancies] == ["no test: [100%]"]
    assert reading.beyond(reading) == []
    only = read(make_task(fail_to_pass=("[100%]",)), TestRun(0, printed.encode(), 1.0, passed(A)))
    assert (only.fixed, "no test is called as FAIL_TO_PASS says" in only.problems[0]) == (frozenset(), True)


def test_verdict_accepts_no_test_because_it_was_printed() -> None:
    assert doubts(f"PASSED {B}\n{HEAD}PASSED {A}\n", passed(A)) == [f"!no test: {B}"]
    assert doubts(f"{B} PASSED\n", Report(sessions=1)) == ["!incomplete"]
    failed = read(make_task(fail_to_pass=(A, B)), TestRun(1, f"FAILED {B}\n{HEAD}".encode(), 1.0, passed(A)))
    assert (failed.fail_to_pass[B], failed.phantoms) == ("FAILED", frozenset())


def test_verdict_requires_of_tests_that_share_a_name_what_the_reference_does() -> None:
    """Of a name that was cut at a blank, a skipped test says nothing; a patch may not make it skipped, nor
    keep it from running."""
    ids = ("t.py::a[x y]", "t.py::a[x z]")
    task = make_task(fail_to_pass=("t.py::a[x",), pass_to_pass=())
    report = Report(
        sessions=1, complete=True, exit_status=0, statuses=dict(zip(ids, ("PASSED", "SKIPPED"), strict=True))
    )
    reading = read(task, TestRun(0, f"{HEAD}PASSED {ids[0]}\n".encode(), 1.0, report))
    assert reading.problems == ()
    stands = "'t.py::a[x' stands for"
    assert [doubt.key for doubt in reading.discrepancies] == ["SKIPPED: t.py::a[x", f"{stands} 2 tests"]
    report = Report(sessions=1, complete=True, exit_status=0, statuses={ids[0]: "PASSED"})
    dropped = read(task, TestRun(0, f"{HEAD}PASSED {ids[0]}\n".encode(), 1.0, report))
    assert [doubt.key for doubt in dropped.beyond(reading)] == [f"{stands} 1 test"]
