"""Parse test logs: the status of each test in the output of pytest and unittest.

pytest must have been run with `-rA`, unittest with `-v`. Where a log says several things about one test (it
passed and its teardown failed), the worst counts. `log_reader` finds a reader by the name that tasks give it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice, takewhile

from swe_core.api.task import TestStatus
from swe_core.builtin.swe.log_reader import Found, LogReader
from swe_core.errors import TaskError

_STATUSES: tuple[TestStatus, ...] = ("PASSED", "XFAIL", "XPASS", "SKIPPED", "FAILED", "ERROR", "MISSING")
LONGEST_LINE = 16 * 1024
_BADNESS: Mapping[TestStatus, int] = {status: rank for rank, status in enumerate(_STATUSES)}
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def shortened(log: bytes) -> bytes:
    """Cut the lines of a log to `LONGEST_LINE` bytes: parsers may be slow on long lines."""
    at = 0
    while len(log) - at > LONGEST_LINE:
        if (end := log.rfind(b"\n", at, at + LONGEST_LINE + 1)) < 0:
            return b"\n".join(line[:LONGEST_LINE] for line in log.split(b"\n"))
        at = end + 1
    return log


def note_worst(found: dict[str, TestStatus], test: str, status: TestStatus) -> None:
    """Note the status of a test; of several, the worst counts."""
    before = found.get(test)
    if before is None or _BADNESS[status] > _BADNESS[before]:
        found[test] = status


# pytest

_SUMMARY = b"short test summary info"
_SUMMARY_LINE = re.compile(rb"^(?:\x1b\[[0-9;]*m)*=+ short test summary info =+\s*(?:\x1b|$)")
_WORDS: Mapping[str, TestStatus] = {status: status for status in _STATUSES if status != "MISSING"}


def parse_pytest(log: bytes) -> dict[str, TestStatus]:
    """Return the results in the last "short test summary info" of a `pytest -rA` log; empty when there is
    none.

    A skipped test is listed there by file and line only (`tests/test_a.py:12`); its id is known where
    the run was verbose. So are all others, where a verbose run ended without `-rA`: no passed test is
    listed then, and the last line counts some.
    """
    start = _summary_start(log)
    found: dict[str, TestStatus] = {}
    for line in _lines(log[start:]) if start is not None else ():
        word, _, rest = line.partition(" ")
        status = _WORDS.get(word)
        if status is None or not rest.strip():
            continue
        if status == "SKIPPED":
            rest = re.sub(r"^\[\d+\] ", "", rest)
            note_worst(found, re.sub(r"(:\d+)?: .*", r"\1", rest, count=1), status)
            continue
        test = (rest if status == "PASSED" else _without_message(rest)).rstrip()
        note_worst(found, test, status)
        if status == "XPASS" and " " in test:  # before pytest 8: "XPASS id reason"
            note_worst(found, test.split(" ", 1)[0], status)
    if "PASSED" not in found.values() and _counts_passed(log):
        for word, status in _WORDS.items():
            for test in _verbosely(log[:start], word):
                note_worst(found, test, status)
    elif start is not None:
        for test in _verbosely(log[:start], "SKIPPED"):
            found.setdefault(test, "SKIPPED")
    return found


def _counts_passed(log: bytes) -> bool:
    """Return whether the last that pytest printed, or a plugin in its place, counts passed tests."""
    at = log.rfind(b" passed")
    if at < 0:
        return False
    start = log.rfind(b"\n", 0, at) + 1
    line = _lines(log[start:].partition(b"\n")[0])[0]
    return bool(
        _END.match(line) or (_COUNT.match(line) and _RESULTS.search(log[max(0, start - 200) : start]))
    )


_END = re.compile(r"(?:=+ )?(?:\d+ \w+, )*\d+ passed\b.* in [\d.]+ ?s")
_COUNT = re.compile(r" +\d+ passed$")
_RESULTS = re.compile(
    rb"^\W*(?:\[\d*m)*Results \([\d.]+s\):", re.MULTILINE
)  # pytest-sugar's, pytest-pretty's


def _verbosely(log: bytes, word: str) -> Iterable[str]:
    """Yield the tests of lines `ID STATUS (REASON) [ 12%]`, whose last two parts may be missing."""
    for line in _lines_with(log, f" {word}".encode()):
        line = line.rstrip()
        if line.endswith("%]"):
            line = line[: line.rfind("[")].rstrip()
        test = line.partition(f" {word} (")[0] if line.endswith(")") else line.removesuffix(f" {word}")
        if test != line and "::" in test.split(maxsplit=1)[0][1:]:
            yield test


def _summary_start(log: bytes) -> int | None:
    """Return the start of the last summary; code under test may print earlier ones."""
    end = len(log)
    while (at := log.rfind(_SUMMARY, 0, end)) >= 0:
        line_start = log.rfind(b"\n", 0, at) + 1
        line_end = log.find(b"\n", at)
        if _SUMMARY_LINE.match(log[line_start : line_end if line_end >= 0 else len(log)]):
            return line_start
        end = line_start
    return None


def _lines(log: bytes) -> list[str]:
    text = log.decode(errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.split("\n")  # not splitlines(): an id may hold characters that count as line ends there


def _lines_with(log: bytes, needle: bytes) -> Iterable[str]:
    at = log.find(needle)
    while at >= 0:
        line_start = log.rfind(b"\n", 0, at) + 1
        line_end = log.find(b"\n", at)
        line_end = line_end if line_end >= 0 else len(log)
        yield _lines(log[line_start:line_end])[0]
        at = log.find(needle, line_end)


def _without_message(rest: str) -> str:
    """Cut ` - message` off an id. Inside the brackets of a parametrized id, ` - ` belongs to the id: it ends
    at the first `] - ` with balanced brackets, else at the first `] - `."""
    bracket, dash = rest.find("["), rest.find(" - ")
    if dash < 0:
        return rest
    if bracket < 0 or dash < bracket:
        return rest[:dash]
    if rest.endswith("]") and rest.count("[") == rest.count("]") and "] - " not in rest:
        return rest
    opened, first = 0, len(rest)
    for found in _BRACKET.finditer(rest):
        opened += 1 if found[0] == "[" else -1
        if len(found[0]) > 1:
            end = found.start() + 1
            if opened == 0:
                return rest[:end]
            first = min(first, end)
    return rest[:first]


_BRACKET = re.compile(r"\[|\](?: - )?")


# unittest

_HEAD = re.compile(r"\s*(\w+) \(([\w.]+)\)(?: \.\.\. (ok|FAIL|ERROR)$)?")
_GLUED = re.compile(r".* \.\.\. (\w+) \(([\w.]+)\)(?= .*\.\.\. )")
_SECTION = re.compile(r"(FAIL|ERROR): (\w+) \(([\w.]+)\)")
_ENDINGS: Mapping[str, TestStatus] = {
    "ok": "PASSED",
    "FAIL": "FAILED",
    "ERROR": "ERROR",
    "expected failure": "XFAIL",
    "unexpected success": "FAILED",  # it makes the run fail, like pytest's strict xfail
}


def parse_unittest(log: bytes) -> dict[str, TestStatus]:
    """Return the results in the log of a `unittest -v` run, by dotted name (`package.module.Class.test_x`).

    Docstring lines, output between a test's name and its result, and sub-tests are understood. A test
    that printed text without a line end right before its result is not found.
    """
    return _parse_unittest(log)[0]


def parse_django(log: bytes) -> dict[str, TestStatus]:
    """As `parse_unittest`, and a test with a docstring is also found by its first line: that is how SWE-bench
    names Django's tests. Where several tests have the same, the worst counts."""
    found, said = _parse_unittest(log)
    for line, test in said:
        if test in found:
            note_worst(found, line, found[test])
    return found


def _parse_unittest(log: bytes) -> tuple[dict[str, TestStatus], list[tuple[str, str]]]:
    """Return the results, and the first lines of docstrings, each with the test that it belongs to."""
    found: dict[str, TestStatus] = {}
    said: list[tuple[str, str]] = []
    running: str | None = None
    named = ""  # the line that named the test whose result is still to come
    for line in _lines(log):
        line = line.rstrip()
        if head := _HEAD.match(line):
            if head[3]:  # nearly every line
                note_worst(found, dotted(head[1], head[2]), _ENDINGS[head[3]])
                running = None
                continue
            # a test whose sub-tests failed ends without a word before Python 3.11: the next one follows
            head = (line.count(" ... ") > 1 and _GLUED.match(line)) or head
            running = dotted(head[1], head[2])
            named = line
        elif section := _SECTION.match(line):
            note_worst(found, dotted(section[2], section[3]), _ENDINGS[section[1]])
            continue
        elif running is not None and " ... " in line and " ... " not in named:
            said.append((line.split(" ... ", 1)[0].strip(), running))
        if running is not None and (status := _ending(line)) is not None:
            note_worst(found, running, status)
            running = None
    return found, said


def _ending(line: str) -> TestStatus | None:
    """Return the result at the end of a line, alone or after `... `."""
    status = _ENDINGS.get(line[line.rfind("... ") + 4 :] if "... " in line else line)
    return "SKIPPED" if status is None and _is_skipped(line) else status


def _is_skipped(line: str) -> bool:
    """Return whether a line ends with `skipped 'REASON'`, in quotes of either kind."""
    head = f"skipped {line[-1:]}"
    return line.endswith(("'", '"')) and (line[:-1].startswith(head) or f"... {head}" in line[:-1])


def dotted(name: str, where: str) -> str:
    """Return the dotted name of a unittest. Before Python 3.11 `where` lacks the method."""
    return where if where.endswith(f".{name}") else f"{where}.{name}"


# R2E-Gym


def parse_r2e(log: bytes) -> dict[str, TestStatus]:
    """Return the results in a `pytest -rA` log under R2E-Gym's names: the id without its file, joined by
    dots.

    As there, only PASSED, FAILED and ERROR count, and of two tests of one name the later line
    (R2E-Gym's `execution_log_parser`). A file that could not be imported has the name "".
    """
    start = _summary_start(log)
    if start is None:
        return {}
    found: dict[str, TestStatus] = {}
    for line in _lines(log[start:]):
        word, _, rest = line.partition(" ")
        if word in _R2E and rest.strip():
            found[r2e_name(rest)] = _R2E[word]
    return found


def r2e_name(test: str) -> str:
    """Return R2E-Gym's name for a pytest node id."""
    return _ANSI.sub("", ".".join(test.rstrip().split("::")[1:])).split(" - ")[0]


_R2E: Mapping[str, TestStatus] = {"PASSED": "PASSED", "ERROR": "ERROR", "FAILED": "FAILED"}
"""In the order in which pytest's `-rA` prints them."""


def _renamed_r2e(found: Found) -> Found:
    return {
        r2e_name(test): status for word in _R2E for test, status in found.items() if status == word
    }  # fmt: skip


# by name


SWEBENCH = "swebench:"
"""What the name of a reader starts with that is a parser of the package swebench."""

_READERS: Mapping[str, LogReader] = {
    "pytest": LogReader(parse_pytest, lambda found: found),
    "unittest": LogReader(parse_unittest, lambda found: found, "unittest"),
    "django": LogReader(parse_django, lambda found: found, "unittest"),
    "r2e": LogReader(parse_r2e, _renamed_r2e),
}


def log_reader(name: str) -> LogReader:
    """Return the reader of a `log_parser`: "pytest", "unittest", "django", "r2e" or "swebench:NAME".

    Raises:
        TaskError: There is none of that name, or the package swebench is not installed.
    """
    if name in _READERS:
        return _READERS[name]
    if name.startswith(SWEBENCH):
        from swe_core.builtin.swe.swebench_parsers import swebench_reader

        return swebench_reader(name.removeprefix(SWEBENCH))
    raise TaskError(
        f"unknown log parser {name!r}; there are: {', '.join(_READERS)}, and {SWEBENCH}NAME for those of the "
        "package swebench"
    )


def statuses(parser: str, found: Found, wanted: Iterable[str]) -> dict[str, TestStatus]:
    """Return the status of each of the `wanted` tests; MISSING if the log has none."""
    behind = meant(parser, found, wanted)
    return {
        test: max((found[one] for one in tests), key=_shared, default="MISSING")
        for test, tests in behind.items()
    }


def meant(parser: str, found: Found, wanted: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the tests that each of the `wanted` names stands for; none if nothing was found of it.

    Data sets name tests as other parsers saw them (`_other_names`), and several tests may have one such
    name. A pytest id that was cut inside its brackets (`test_a[x` for `test_a[x y]`) stands for all tests
    that begin so, unless some have exactly that name. A unittest is named as in a log of any Python version,
    by its dotted name, or (Django's) by its docstring.
    """
    if parser in ("unittest", "django"):
        names = {test: (_dotted_id(test), test.strip()) for test in wanted}
        return {test: [name for name in both if name in found][:1] for test, both in names.items()}
    named: dict[str, Sequence[str]] = {test: [test] for test in wanted}
    if named.keys() <= found.keys():
        return named
    others: dict[str, list[str]] = {}
    for test in found:
        for name in _other_names(test):
            others.setdefault(name, []).append(test)
    ordered = sorted(found)
    unknown = named.keys() - found.keys()
    return named | {test: others.get(test) or _begun(test, ordered) for test in unknown}


def _shared(status: TestStatus) -> int:
    """Rank the statuses of tests that share a name: the worst counts. Logs that data sets were made from name
    no skipped test by its id, and none that passes unexpectedly counts there: both say nothing of others."""
    return -1 if status in ("SKIPPED", "XPASS") else _BADNESS[status]


def _begun(test: str, ordered: Sequence[str]) -> Sequence[str]:
    """Return the tests whose ids begin with one that was cut inside its brackets."""
    if test.count("[") <= test.count("]"):
        return ()
    begin = bisect_left(ordered, test)
    return list(takewhile(lambda name: name.startswith(test), islice(ordered, begin, None)))


def _other_names(test: str) -> Iterable[str]:
    """Return what data sets also call a pytest id. Their parsers keep the first word (most of swebench's),
    join the words by one blank, without control characters and colours (`parse_log_pytest_v2`), keep the last
    part of a path in the brackets (`parse_log_pytest_options`) and know mouse buttons by number
    (`parse_log_matplotlib`)."""
    if _PLAIN.fullmatch(test):
        return ()
    buttons = test.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")
    bare = _bare(test)
    names = {*test.split()[:1], *buttons.split()[:1], *bare[:1], " ".join(bare)}
    names.update([*map(_with_short_path, test.split()[:1])])
    return names - {test}


_PLAIN = re.compile(r"[!-Z\\^-~]*")  # no bracket, nothing that str.split() takes for a blank, ASCII
_COLOUR = re.compile(r"\[\d+m")
_NO_CONTROLS = dict.fromkeys(range(1, 32))


def _bare(text: str) -> list[str]:
    return _COLOUR.sub("", text).translate(_NO_CONTROLS).split()


def _with_short_path(test: str) -> str:
    start, _, rest = test.partition("[")
    option, end, _ = rest.rpartition("]")
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = option[option.rindex("/") :]
    return f"{start}[{option}]" if end else test


def printed(parser: str, log: bytes, wanted: Collection[str]) -> dict[str, TestStatus]:
    """Return how a log says that some of the `wanted` ended, which no test is called.

    Parsers that data sets were made with take any line for a result that begins or ends with the word for
    one: `PASSED    [100%]`, which is pytest's progress, or what a test prints that runs pytest itself. Of
    unittest they take what stands before ` ... ok`. As there, the last such line counts.
    """
    if not wanted or parser not in _PRINTED:
        return {}
    said = ((name, status) for line in _lines(log) for name, status in _PRINTED[parser](line))
    return {name: status for name, status in said if name in wanted}


def _said_by_pytest(line: str) -> Iterable[tuple[str, TestStatus]]:
    if not any(word in line for word in _SAID):
        return
    for words in (line.split(), _bare(line)):
        if len(words) < 2:
            continue
        if (status := _SAID.get(words[-1])) is not None:
            yield " ".join(words[:-1]), status
        if (status := _SAID.get(words[1])) is not None:
            yield words[0], status
        if (status := _SAID.get(words[0])) is not None:
            for name in (words[1], _with_short_path(words[1]), " ".join(words[1:])):
                yield name, status


_SAID: Mapping[str, TestStatus] = {word: status for word, status in _WORDS.items() if word != "XPASS"}


def _said_by_unittest(line: str) -> Iterable[tuple[str, TestStatus]]:
    name, dots, end = line.strip().rpartition(" ... ")
    if (
        dots
        and (status := _ENDINGS.get(end) or _ENDINGS.get(end.lower().strip()) or _ending(line)) is not None
    ):
        yield name, status


_PRINTED: Mapping[str, Callable[[str], Iterable[tuple[str, TestStatus]]]] = {
    "pytest": _said_by_pytest,
    "unittest": _said_by_unittest,
    "django": _said_by_unittest,
}


def _dotted_id(test: str) -> str:
    head = _HEAD.fullmatch(test.strip())
    return dotted(head[1], head[2]) if head else test.strip()
