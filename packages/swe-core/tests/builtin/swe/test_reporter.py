"""The reporter: its report of honest test runs, and its transparency to them."""

from __future__ import annotations

import hashlib
import hmac
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.sandbox import Sandbox
from swe_core.builtin.swe import report as report_module
from swe_core.builtin.swe.agreement import PRIME, Agreement
from swe_core.builtin.swe.parsers import parse_pytest
from swe_core.builtin.swe.report import MAX_LINE, SESSIONS, Report, Reporter
from swe_core.builtin.swe.test_runners import source

from .suites import OLD, PYTHON, SUMMARY, Suite, run, run_twice, zoo

PYTEST = f"{PYTHON} -m pytest {SUMMARY} -p no:cacheprovider -p no:randomly"


@pytest.mark.parametrize("suite", zoo("zoo_pytest.toml", PYTEST))
@pytest.mark.slow
async def test_reporter_does_not_change_an_honest_run(sandbox: Sandbox, suite: Suite) -> None:
    watched = await run_twice(sandbox, suite, "pytest")
    report = watched.report
    if suite.silent:
        return
    if report.sessions == 1 and "make" not in suite.command:
        assert report.exit_status == watched.exit_code
    agree(report, watched.log)


def agree(report: Report, log: bytes) -> None:
    """Assert that the report agrees with the summary of pytest."""
    log = log.replace(b"\nFAIL ", b"\nFAILED ") if OLD else log
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
        ("t", "t.py::test_a", "call", "passed", "0", "0", ""),
        ("p", "t.py::test_b"),
        ("z", "0", "0", "1"),
    )


def report_of(*events: tuple[str, ...]) -> Report:
    """Return the report of a session of these events."""
    reporter = Reporter()
    reporter.feed(b"".join(a_session_of(reporter, *events)))
    return reporter.report()


def test_report_reads_a_session_in_pieces_of_any_size() -> None:
    for size in (1, 7, 1000):
        reporter = Reporter()
        data = b"".join(a_session(reporter))
        for start in range(0, len(data), size):
            reporter.feed(data[start : start + size])
        report = reporter.report()
        assert (report.complete, report.exit_status, report.odd) == (True, 0, frozenset())
        assert report.statuses == {"t.py::test_a": "PASSED", "t.py::test_b": "PASSED"}
        assert report.collected == {"t.py::test_a", "t.py::test_b"}


def test_report_detects_a_lost_event() -> None:
    for lost in range(6):
        reporter = Reporter()
        events = a_session(reporter)
        reporter.feed(b"".join((*events[:lost], *events[lost + 1 :])))
        assert not reporter.report().complete, lost


def test_report_ignores_unsigned_events() -> None:
    reporter, other = Reporter(), Reporter()
    reporter.feed(b"".join(a_session(other)[1:]))
    reporter.feed(b"PASSED t.py::test_a\n0 0 t\n" + b"0" * 32 + b" 0 0 s\n")
    assert reporter.report() == Report()


def test_report_detects_replayed_silent_and_repeated_sessions() -> None:
    replayed, silent, twice = Reporter(), Reporter(), Reporter()
    events = a_session(replayed)
    replayed.feed(b"".join((*events[:3], *events[2:])))
    assert not replayed.report().complete
    announcement, *_ = a_session(silent)
    silent.feed(b"".join((announcement, *a_session(silent))))
    assert (silent.report().sessions, silent.report().complete) == (2, False)
    assert silent.report().odd == {"the test runner was started while it ran"}
    announcement, *events = a_session(twice)
    twice.feed(b"".join((announcement, announcement, *events)))
    assert twice.report().odd == {"a session of the test runner was announced twice"}


def test_report_accepts_consecutive_sessions() -> None:
    reporter = Reporter()
    for _ in range(SESSIONS):
        reporter.feed(b"".join(a_session(reporter)))
    assert (reporter.report().sessions, reporter.report().complete) == (SESSIONS, True)
    assert reporter.report().odd == frozenset()
    reporter.feed(b"".join(a_session(reporter)))
    assert reporter.report().odd == {f"the test runner was started more than {SESSIONS} times"}


def test_report_rejects_degenerate_key_halves() -> None:
    for half in (0, 1, PRIME - 1, PRIME, 2**1536 - 1):
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
    report = report_of(("c", "t.py::test_a"), ("c", "t.py::test_b", "t.py::test_c"), ("z", "0", "0", "0"))
    assert len(report.collected) == 3 - after
    assert report.complete is not bool(after)


def test_failure_reported_after_a_pass_counts() -> None:
    passed = ("p", "t.py::test_a")
    report = report_of(passed, ("t", "t.py::test_a", "call", "failed", "0", "0", ""), passed)
    assert report.statuses == {"t.py::test_a": "FAILED"}


def test_report_keeps_what_the_code_of_a_passed_test_says() -> None:
    phases = [
        ("t", "t.py::test_a", "call", status, "0", "0", f"{status}: it failed")
        for status in ("failed", "passed")
    ]
    assert report_of(phases[0]).evidence == {}
    assert report_of(phases[1]).evidence == {"t.py::test_a": "passed: it failed"}


async def test_long_ids_fit_the_lines_of_the_report(sandbox: Sandbox) -> None:
    text = (
        "import pytest\ndef name(n): return f'{n}-' + 'ü' * (n * 51 % 2000)\n"
        "@pytest.mark.parametrize('n', range(100), ids=name)\ndef test_n(n): pass\n"
    )
    report = (await run(sandbox, Suite({"test_a.py": text}, PYTEST), "pytest")).report
    assert report.complete
    assert len(report.collected) == len(report.statuses) == 100


async def test_command_that_hides_the_reporter_runs_without_it(sandbox: Sandbox) -> None:
    suite = Suite(
        {"src/one.py": "", "test_a.py": "import one\ndef test_a(): pass\n"}, f"PYTHONPATH=src {PYTEST} | cat"
    )
    done = await run(sandbox, suite, "pytest")
    assert (done.report.sessions, parse_pytest(done.log)) == (0, {"test_a.py::test_a": "PASSED"})


class AnythingElse:
    """Equal to every object."""

    __hash__ = None  # type: ignore[assignment]  # it is in no set

    def __eq__(self, other: object) -> bool:
        return True


def replace_code(space: dict[str, Any], kind: Any) -> None:
    space["one"].__code__ = (lambda: 2).__code__


CHANGES: dict[str, Callable[[dict[str, Any], Any], object]] = {
    "another function": lambda space, kind: space.update(two=lambda: 3),
    "equal to everything": lambda space, kind: space.update(number=AnythingElse()),
    "removed": lambda space, kind: space.pop("one"),
    "the code of a function": replace_code,
    "a method": lambda space, kind: setattr(kind, "run", lambda self: None),
    "a method that was removed": lambda space, kind: delattr(kind, "run"),
    "what is in a list": lambda space, kind: space["data"].clear(),
}


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_snapshot_detects_each_change(change: str | None, tmp_path: Path) -> None:
    inside: dict[str, Any] = {"__name__": "inside", "__file__": str(tmp_path / "inside.py")}
    exec(source("pytest"), inside)

    class Kind:  # of whose names one alone is watched
        def run(self) -> None:
            pass

    space: dict[str, Any] = {"one": lambda: 1, "two": lambda: 2, "number": 7000, "data": [1], "free": 1}
    snapshot = inside["Snapshot"]()
    snapshot.add("module", space, ("one", "two", "number", "data"))
    snapshot.add("Kind", vars(Kind), ("run",))
    snapshot.end()
    space.update(free=2, new=3)
    assert not list(snapshot.changed())
    if change is not None:
        CHANGES[change](space, Kind)
    assert bool(list(snapshot.changed())) is (change is not None)
    assert bool(list(snapshot.changed(whole=False))) is (change not in (None, "what is in a list"))


def test_internal_error_is_reported_and_the_run_continues() -> None:
    inside: dict[str, Any] = {"__name__": "inside", "__file__": "inside.py"}
    exec(source("pytest"), inside)
    told: list[str] = []

    def compare(item: object) -> object:
        return {"an item": 1}[str(item)]

    function = inside["guarded"](told.append, compare)
    assert (function("an item"), function("another")) == (1, None)
    assert told == ["KeyError in compare"]
    assert (inside["FD"], inside["PRIME"]) == (report_module.FD, PRIME), "both ends share them"
