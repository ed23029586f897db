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
