"""Tests of a grade for a page: their statuses, what the failing ones asserted, and where the log says so."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from swe_core.api.grader import Grade
from swe_core.api.task import TestStatus
from swe_core.report.failing_tests import TestFailure, by_test, failures_of
from swe_core.system.printable import printable
from swe_core.view.excerpts import Tail, tail_of

TEST_LOG = "test.log"
MAX_LOG = 400_000
"""Bytes shown of a test log: its end, where the results stand."""
MAX_FAILED = 200
"""Tests of one kind that are listed with a problem; and as many without one as `MAX_PASSED`."""
MAX_PASSED = 1_000
PASSED: frozenset[TestStatus] = frozenset(("PASSED", "XFAIL", "XPASS"))
"""Statuses that let a test count as passed."""


@dataclass(frozen=True, slots=True)
class ShownTest:
    """One test.

    Args:
        failure: What it asserted; None where it passed, or the log does not say.
        place: Number of the line of the shown log that has it; None if there is none.
    """

    name: str
    status: TestStatus
    failure: TestFailure | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of one kind.

    Args:
        kind: As a grade names it.
        title: The kind, in words.
        counts: Status → tests.
        total: Number of all tests; `bad` of them have a problem.
        failed: Those with a problem, at most `MAX_FAILED`.
        passed: The others, at most `MAX_PASSED`.
    """

    __test__ = False  # not a test class, in spite of its name

    kind: str
    title: str
    total: int
    bad: int
    counts: Mapping[TestStatus, int]
    failed: Sequence[ShownTest]
    passed: Sequence[ShownTest]

    @property
    def left_out(self) -> int:
        """Return the number of tests that are not listed."""
        return self.total - len(self.failed) - len(self.passed)


@dataclass(frozen=True, slots=True)
class Log:
    """The end of a test log.

    Args:
        left_out: Bytes before it.
        parts: Its text, cut before each line that a test refers to; with the number of that line, or None.
    """

    left_out: int
    parts: Sequence[tuple[int | None, str]]


def graded_tests(grade: Grade, folder: Path, run: Path) -> tuple[list[Tests], Log | None]:
    """Return the tests of a grade, and the end of the test log in a folder of the run directory, if any."""
    tail = tail_of(folder / TEST_LOG, run, MAX_LOG)
    lines = [] if tail is None else printable(tail.text).split("\n")
    kinds = (
        ("fail to pass", "Tests that must be fixed", grade.fail_to_pass, PASSED),
        ("pass to pass", "Tests that must keep passing", grade.pass_to_pass, PASSED | {"SKIPPED"}),
    )
    failing = [[test for test, status in tests.items() if status not in good] for _, _, tests, good in kinds]
    bad = [test for tests in failing for test in tests]
    failures = by_test(failures_of(tail.text), bad) if tail is not None and bad else {}
    listed = [test for tests in failing for test in tests[:MAX_FAILED]]
    places = _places({test: failures[test] for test in listed if test in failures}, lines)
    found = []
    for kind, title, tests, good in kinds:
        if tests:
            failed = [test for test, status in tests.items() if status not in good]
            passed = [test for test, status in tests.items() if status in good]
            found.append(
                Tests(
                    kind,
                    title,
                    len(tests),
                    len(failed),
                    Counter(tests.values()),
                    [
                        ShownTest(test, tests[test], failures.get(test), places.get(test))
                        for test in failed[:MAX_FAILED]
                    ],
                    [ShownTest(test, tests[test]) for test in passed[:MAX_PASSED]],
                )
            )
    return found, None if tail is None else _log(tail, lines, places)


def _places(failures: Mapping[str, TestFailure], lines: Sequence[str]) -> dict[str, int]:
    """Return the number of the line, from 0, where the log says where each test failed, if it does."""
    log = "\n".join(lines)
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    known: dict[str, int] = {}
    found = {}
    for test, failure in failures.items():
        wanted = []
        if failure.line is not None:
            wanted = [f"{failure.file}:{failure.line}:", f'File "{failure.file}", line {failure.line},']
        if failure.lines:
            wanted.append(failure.lines[-1].strip())
        for text in filter(None, wanted):
            if text not in known:
                known[text] = log.find(text)
            if known[text] >= 0:
                found[test] = bisect_right(starts, known[text]) - 1
                break
    return found


def _log(tail: Tail, lines: Sequence[str], places: Mapping[str, int]) -> Log:
    cuts = sorted(set(places.values()))
    starts: list[int | None] = [None, *cuts]
    ends = [*cuts, len(lines)]
    parts = [(start, "\n".join(lines[start or 0 : end])) for start, end in zip(starts, ends, strict=True)]
    return Log(tail.left_out, parts)
