"""The rule: every FAIL_TO_PASS test passes, every PASS_TO_PASS test is kept, and nothing contradicts it.

A part of the reward is for a patch whose only problem is that some FAIL_TO_PASS tests do not pass.

A run has two sources: the reporter (`swe_core.builtin.swe.report`) and the log. The reporter decides; the log
fills in what the reporter does not know. Evidence against an honest run is a `Discrepancy`. Some projects
give discrepancies by themselves, so one counts only if a run with the reference, the task's gold patch, does
not give the same. The grader makes that run only if there is a discrepancy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from swe_core.api.grader import Tampering
from swe_core.api.task import Task, TestStatus
from swe_core.builtin.swe.git_trees import printable
from swe_core.builtin.swe.log_reader import Found
from swe_core.builtin.swe.parsers import log_reader, meant, printed, shortened, statuses
from swe_core.builtin.swe.run_tests import TestRun
from swe_core.system.plural import counted

PASSED: frozenset[TestStatus] = frozenset(("PASSED", "XFAIL", "XPASS"))
_KEPT: frozenset[TestStatus] = frozenset((*PASSED, "SKIPPED"))
_FAILED: frozenset[TestStatus] = frozenset(("FAILED", "ERROR"))
_LENIENT: frozenset[TestStatus] = frozenset(("SKIPPED", "XFAIL", "XPASS"))
_SIGNALLED = 128
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Evidence against an honest run.

    Args:
        key: The same for two runs that do the same.
        forged: Whether it is a contradiction, so that it counts as tampering.
        test: The test that it is about; empty where it is about the whole run.
    """

    key: str
    sentence: str
    forged: bool = False
    test: str = ""

    @property
    def tampering(self) -> Tampering:
        """Return the entry for the grade."""
        return Tampering(kind="report", path=self.test, done=self.sentence)


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """The statuses of a test run, and what follows from them.

    Args:
        fail_to_pass: How each of these tests ended.
        channel: Where the statuses come from; the log if the reporter reports none of the tests.
        problems: Why the task is not solved, one sentence each; empty if it is solved.
        fixed: The FAIL_TO_PASS tests that end as they should; empty if the patch breaks anything else.
        discrepancies: Evidence against the run.
        silent: Whether it gave no result at all.
        phantoms: Those of the tests that no test is called. The log alone says that they passed, as for the
            parser that the data set was made with (`parsers.printed`).
    """

    fail_to_pass: dict[str, TestStatus]
    pass_to_pass: dict[str, TestStatus]
    channel: Literal["reporter", "log"]
    problems: tuple[str, ...]
    fixed: frozenset[str]
    discrepancies: tuple[Discrepancy, ...]
    silent: bool
    phantoms: frozenset[str] = frozenset()

    def with_changed(self, files: Iterable[str]) -> TestOutcome:
        """Return this outcome with a discrepancy for each of `files`, which the run changed.

        The verdict depends on these files. "" stands for all of them, where the sandbox cannot name one.
        """
        sentences = (
            f"{printable(path)} was changed while the tests ran"
            if path
            else "the files of the tests cannot be read again"
            for path in files
        )
        more = [Discrepancy(sentence, sentence, forged=True) for sentence in sentences]
        return replace(self, discrepancies=(*self.discrepancies, *more))

    def beyond(self, reference: TestOutcome) -> list[Discrepancy]:
        """Return the discrepancies that the reference does not give too."""
        known = {discrepancy.key for discrepancy in reference.discrepancies}
        return [discrepancy for discrepancy in self.discrepancies if discrepancy.key not in known]


def read(task: Task, run: TestRun) -> TestOutcome:
    """Read a run.

    As in swebench: an expected failure counts as passed; a skipped test counts as kept in PASS_TO_PASS and
    as failed in FAIL_TO_PASS; a test that nothing is said of has not passed. Code under test can raise both
    outcomes, so both are discrepancies: they count only where the reference has the same. So is a name that
    no test has and the log alone says: code under test can print it.
    """
    reader, report = log_reader(task.log_parser), run.report
    found, renamed = reader.parse(shortened(run.log)), reader.rename(report.statuses)
    wanted = tuple(dict.fromkeys((*task.fail_to_pass, *task.pass_to_pass, *(task.expected or ()))))
    by_log = statuses(task.log_parser, found, wanted)
    by_reporter = statuses(task.log_parser, renamed or {}, wanted)
    ended = {test: by_log[test] if by_reporter[test] == "MISSING" else by_reporter[test] for test in wanted}
    whole = report.complete if report.sessions else bool(found)  # else a test that did not end looks like one
    missing = frozenset(test for test, status in ended.items() if whole and status == "MISSING")
    said = printed(task.log_parser, shortened(run.log), missing)
    ended |= said
    # Each of them is a discrepancy, so that a patch cannot make a test one of them.
    phantoms = frozenset(name for name, status in said.items() if status in _KEPT)
    fail_to_pass = {test: ended[test] for test in task.fail_to_pass}
    pass_to_pass = {test: ended[test] for test in task.pass_to_pass}
    good = {test: status for test, status in ended.items() if status in _KEPT}
    tests = {test: status for test, status in good.items() if test not in phantoms}
    behind = meant(task.log_parser, renamed or found, tests)
    evidence = {
        name: text for one, text in report.evidence.items() for name in reader.rename({one: "PASSED"}) or ()
    }
    discrepancies = [
        *_about_session(run, reader.runner),
        *_about_exit_code(run, found, reader.runner),
        *(_about_names(tests, by_reporter) if report.sessions else ()),
        *(_about_counts(run, found) if report.complete else ()),
        *_about_log(tests, by_log, run.log if found and reader.runner == "pytest" else None),
        *_about_lenience(task, tests, behind, renamed or found),
        *_about_evidence(behind, evidence),
        *(_about_shared(behind) if task.log_parser == "pytest" else ()),
        *_about_phantoms(phantoms),
    ]
    return TestOutcome(
        fail_to_pass,
        pass_to_pass,
        channel="reporter" if any(status != "MISSING" for status in by_reporter.values()) else "log",
        problems=tuple(_problems(task, fail_to_pass, pass_to_pass, ended, found, phantoms)),
        fixed=frozenset(_fixed(task, pass_to_pass, ended, found)) - phantoms,
        discrepancies=tuple(discrepancies),
        silent=not found and not report.statuses,
        phantoms=phantoms,
    )


def _problems(
    task: Task,
    fail_to_pass: Mapping[str, TestStatus],
    pass_to_pass: Mapping[str, TestStatus],
    ended: Mapping[str, TestStatus],
    found: Found,
    phantoms: Collection[str],
) -> Iterator[str]:
    if fail_to_pass and all(test in phantoms for test in fail_to_pass):
        named = ", ".join(map(repr, list(fail_to_pass)[:_SHOWN]))
        yield f"no test is called as FAIL_TO_PASS says, and the log alone has {named}"
    yield from _problem("FAIL_TO_PASS tests do not pass", fail_to_pass, PASSED)
    yield from _problem("PASS_TO_PASS tests no longer pass", pass_to_pass, _KEPT)
    if task.expected is not None:
        yield from _listed("expected results are others", _unlike(task, ended), len(task.expected))
        yield from _listed("results were not expected", _unexpected(task, found), len(found))


def _fixed(
    task: Task, pass_to_pass: Mapping[str, TestStatus], ended: Mapping[str, TestStatus], found: Found
) -> Iterator[str]:
    unlike = _unlike(task, ended)
    others = unlike.keys() - set(task.fail_to_pass)
    if others or _unexpected(task, found) or not _KEPT.issuperset(pass_to_pass.values()):
        return
    for test in task.fail_to_pass:
        if ended[test] in PASSED and test not in unlike:
            yield test


def _unlike(task: Task, ended: Mapping[str, TestStatus]) -> dict[str, TestStatus]:
    """Return the tests that end in another way than the task expects."""
    return {test: ended[test] for test, status in (task.expected or {}).items() if ended[test] != status}


def _unexpected(task: Task, found: Found) -> dict[str, TestStatus]:
    """Return the results that a task with a list of all results does not have."""
    if task.expected is None:
        return {}
    return {test: status for test, status in found.items() if test not in task.expected}


def _problem(what: str, ended: Mapping[str, TestStatus], good: frozenset[TestStatus]) -> Iterable[str]:
    return _listed(what, {test: status for test, status in ended.items() if status not in good}, len(ended))


def _listed(what: str, bad: Mapping[str, TestStatus], of: int) -> Iterator[str]:
    if bad:
        shown = ", ".join(f"{test!r} {status}" for test, status in list(bad.items())[:_SHOWN])
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        yield f"{len(bad)} of {of} {what}: {shown}{more}"


def _about_session(run: TestRun, runner: str) -> Iterator[Discrepancy]:
    report = run.report
    if report.sessions == 0:
        yield Discrepancy(
            "no session", f"{runner} never started (exit code {run.exit_code}): {run.last_line}"
        )
    elif not report.complete:
        sentence = f"the test run ended before {runner} did (exit code {run.exit_code}): {run.last_line}"
        yield Discrepancy("incomplete", sentence, forged=run.exit_code == 0)
    if report.sessions > 1:
        yield Discrepancy(f"{report.sessions} sessions", f"{runner} ran {report.sessions} times", forged=True)
    if report.remote:
        what = "the tests ran in other processes"
        yield Discrepancy(what, what, forged=True)
    for what in sorted(report.odd):
        yield Discrepancy(what, what, forged=True)


def _about_exit_code(run: TestRun, found: Found, runner: str) -> Iterator[Discrepancy]:
    """swebench's rule, that the exit code must agree with what the log shows, for both channels."""
    report = run.report
    if report.exit_status is not None:
        failed = any(status in _FAILED for status in report.statuses.values())
        if report.exit_status == 0 and run.exit_code != 0:
            what = f"{runner} ended with 0 and the test command with {run.exit_code}"
            yield Discrepancy(f"exit code {run.exit_code} after {runner}", what, forged=True)
        elif report.exit_status == 0 and failed:
            yield Discrepancy("exit code 0", f"tests failed and {runner} ended with 0", forged=True)
        elif report.exit_status != 0 and not failed:
            what = f"no test failed and {runner} ended with {report.exit_status}"
            yield Discrepancy(f"exit code {report.exit_status}", what)
    elif run.exit_code != 0 and not any(status in _FAILED for status in found.values()):
        what = f"no test of the log failed and the exit code is {run.exit_code}"
        crashed = run.exit_code is not None and run.exit_code > _SIGNALLED
        yield Discrepancy(f"exit code {run.exit_code}", what, forged=not crashed)


def _about_names(
    good: Mapping[str, TestStatus], by_reporter: Mapping[str, TestStatus]
) -> Iterator[Discrepancy]:
    for test in good:
        if by_reporter[test] == "MISSING":
            yield Discrepancy(
                f"only the log: {test}", "only the log says that it ran", forged=True, test=test
            )


def _about_counts(run: TestRun, found: Found) -> Iterator[Discrepancy]:
    """For ids that only the log has: it may not hide a failure that the reporter saw; nor may it be empty."""
    if not found:
        if run.report.statuses:
            yield Discrepancy("no log", "the log has no results and the reporter has some", forged=True)
        return
    reported = sum(status in _FAILED for status in run.report.statuses.values())
    printed = sum(status in _FAILED for status in found.values())
    if reported and not printed:
        yield Discrepancy(
            "counts", f"{counted(reported, 'test')} failed and the log says that none did", forged=True
        )


def _about_log(
    good: Mapping[str, TestStatus], by_log: Mapping[str, TestStatus], names: bytes | None
) -> Iterator[Discrepancy]:
    """Yield what the reporter says the log has to say too.

    Args:
        names: The log that has to name each test somewhere: a line of it may be broken by what another thread
            printed. None where output hides whole results, as in unittest's log.
    """
    for test, status in good.items():
        if by_log[test] in _FAILED:
            sentence = f"the log says {by_log[test]} and the reporter {status}"
            yield Discrepancy(f"log {by_log[test]}: {test}", sentence, forged=True, test=test)
        elif names is None or by_log[test] != "MISSING" or status not in PASSED:
            continue
        elif test.encode(errors="replace") not in names:
            sentence = f"the log does not name it and the reporter says {status}"
            yield Discrepancy(f"not in the log: {test}", sentence, forged=True, test=test)


def _about_lenience(
    task: Task, good: Mapping[str, TestStatus], behind: Mapping[str, Sequence[str]], found: Found
) -> Iterator[Discrepancy]:
    for test, status in good.items():
        if task.expected and test in task.expected:
            continue
        for lenient in sorted({status, *(found[one] for one in behind[test])} & _LENIENT):
            yield Discrepancy(
                f"{lenient}: {test}", f"{test!r} ends as {lenient} with this patch alone", test=test
            )


def _about_evidence(
    behind: Mapping[str, Sequence[str]], evidence: Mapping[str, str]
) -> Iterator[Discrepancy]:
    for name, tests in behind.items():
        for test in tests:
            if test in evidence:
                what = f"{test}: {evidence[test]}"
                yield Discrepancy(what, what, forged=True, test=name)


def _about_shared(behind: Mapping[str, Sequence[str]]) -> Iterator[Discrepancy]:
    """A name says nothing of a test that code under test kept from running, where others share the name."""
    for name, tests in behind.items():
        if tests and (len(tests) > 1 or name.count("[") > name.count("]") or name not in tests):
            what = f"{name!r} stands for {counted(len(tests), 'test')}"
            yield Discrepancy(what, f"{what} with this patch alone", test=name)


def _about_phantoms(phantoms: Iterable[str]) -> Iterator[Discrepancy]:
    for name in sorted(phantoms):
        sentence = "no test is called so, and only what was printed says that it passed"
        yield Discrepancy(f"no test: {name}", sentence, forged=True, test=name)
