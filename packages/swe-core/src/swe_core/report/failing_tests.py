"""Failing tests in a test log: what each asserted, and where. Reads the output of pytest and unittest.

A log is hostile text. The time is linear in the length of the log, and the result is bounded.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from swe_core.system.printable import printable

MAX_LOG = 4_000_000
"""Characters that are read: the last ones of a log, because results stand at its end."""
MAX_FAILURES = 500
MAX_LINES = 40
"""Lines kept of one failure."""
MAX_WIDTH = 500
"""Characters kept of one line."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SECTION = re.compile(r"=+ ([\w .,()-]+) =+$")
_SUMMARY = "short test summary info"
_UNITTEST = re.compile(r"(?:FAIL|ERROR): (\S+) \(([\w.]+)\)")
_BARE = re.compile(r"(\w+) \(([\w.]+)\)")
_FRAME = re.compile(r'  File "([^"]+)", line (\d{1,9}),')
_PLACE = re.compile(r"(\S[^:]*):(\d{1,9}): ?(in )?")
_WHEN = re.compile(r"ERROR (?:at (?:setup|call|teardown) of|collecting) ")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class TestFailure:
    """One failing test.

    Args:
        test: pytest's node id, or a unittest's dotted name; pytest's title of the failure where the log has
            no summary.
        file: File of the error, as the log names it; None where the log does not say.
        line: Line in `file`, from 1.
        lines: Of pytest the source line with its mark `>` and the lines with the mark `E`; of a traceback the
            source line and the message. Printable.
    """

    __test__ = False  # not a test class, in spite of its name

    test: str
    file: str | None = None
    line: int | None = None
    lines: tuple[str, ...] = ()


def failures_of(log: str) -> list[TestFailure]:
    """Return the failing tests of a log, in its order; empty where it has none that this module reads."""
    lines = [_COLOUR.sub("", line[: 4 * MAX_WIDTH]).rstrip() for line in log[-MAX_LOG:].split("\n")]
    named: defaultdict[str, deque[str]] = defaultdict(deque)  # in the order in which the blocks stand
    for entry in islice(_summary(lines), 2 * MAX_FAILURES):
        named[_key(_node_id(entry))].append(entry)
    found = []
    for title, block in islice(_blocks(lines), MAX_FAILURES):
        of_title = named[_key(_WHEN.sub("", title))]
        entry = of_title.popleft() if of_title else title
        place, said = _native(block) if _TRACEBACK in block[:MAX_LINES] else _pytest(block)
        if entry == title and place is None:
            continue  # a test printed what looks like a title
        found.append(_failure(_node_id(entry) if entry != title else title, place, said or _message(entry)))
    for entry in islice((entry for entries in named.values() for entry in entries), MAX_FAILURES):
        file = _node_id(entry).partition("::")[0]
        found.append(_failure(_node_id(entry), (file, None), _message(entry)))
    return found[:MAX_FAILURES]


def by_test(failures: Iterable[TestFailure], tests: Iterable[str]) -> dict[str, TestFailure]:
    """Return the failures of `tests`, whose ids may lack the file.

    A test without a failure is left out, and so is one that may be any of several files. Of the failures of
    its sub-tests the first counts.
    """
    exact: dict[str, TestFailure] = {}
    similar: defaultdict[str, list[TestFailure]] = defaultdict(list)
    for failure in failures:
        exact.setdefault(failure.test, failure)
        similar[_key(failure.test)].append(failure)
    found = {}
    for test in tests:
        same = [exact[test]] if test in exact else similar.get(_key(test), [])
        if len({failure.file for failure in same}) == 1:
            found[test] = same[0]
    return found


_Place = tuple[str, int | None] | None


def _failure(test: str, place: _Place, lines: Iterable[str]) -> TestFailure:
    file, line = place or (None, None)
    return TestFailure(
        test=printable(test),
        file=None if file is None else printable(file),
        line=line,
        lines=tuple(printable(one[:MAX_WIDTH]).replace("\n", " ") for one in islice(lines, MAX_LINES)),
    )


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the title and the lines of each failure."""
    section, title, start = "", None, 0
    for at, line in enumerate(lines):
        new = None
        if line.startswith("===="):
            rule = not line.strip("=")
            head = _SECTION.match(line)
            test = _UNITTEST.match(lines[at + 1]) if rule and at + 1 < len(lines) else None
            if head is None and test is None and not (rule and section == "unittest"):
                continue  # printed by a test
            section = "unittest" if head is None else head[1]
            new = _dotted(test[1], test[2]) if test else ""
        elif section in ("FAILURES", "ERRORS") and line.startswith("_") and line.endswith("_"):
            name = line.strip("_")
            new = name.strip() if name[:1] == " " == name[-1:] and name.strip(" _") else None
        if new is not None:
            if title:
                yield title, lines[start:at]
            title, start = new, at + 1
    if title:
        yield title, lines[start:]


def _pytest(block: Sequence[str]) -> tuple[_Place, list[str]]:
    """Return where pytest's last traceback ends, and what it says. Its styles are `long` and `short`."""
    place: tuple[str, int] | None = None
    source: str | None = None
    said: list[str] = []
    in_error = short = False
    for line in takewhile(lambda line: not (line.startswith("---") and " Captured " in line), block):
        if line.startswith("E ") or (in_error and line == "E"):
            if not in_error:  # of a chain of exceptions the last counts
                said = [source] if source else []
            in_error = True
            said.append(line)
            continue
        in_error = False
        if found := _PLACE.match(line):
            place, short = (found[1], int(found[2])), found[3] is not None
            source = None if short else source
        elif line.startswith("> "):
            source = line
        elif short and source is None and line.startswith("    "):
            source = f">{line[1:]}"
    return place, said


def _native(block: Sequence[str]) -> tuple[_Place, list[str]]:
    """Return where Python's last traceback ends, and its message."""
    place: tuple[str, int] | None = None
    source: str | None = None
    said: list[str] = []
    in_frames = in_library = False
    for line in block[block.index(_TRACEBACK) :]:
        if line == _TRACEBACK:
            said, in_frames = [], True
        elif line.startswith(("---", "Stdout:", "Stderr:")):
            break
        elif not in_frames:
            said.append(line)
        elif frame := _FRAME.match(line):
            in_library = frame[1].endswith("/unittest/case.py")
            if not in_library:
                place, source = (frame[1], int(frame[2])), None
        elif line.startswith(" "):
            if not in_library:
                source = source or line.strip()  # below it may be a line of carets
        elif line:
            said, in_frames = [*([source] if source else []), line], False
    while said and not said[-1]:
        said.pop()
    return place, said


def _summary(lines: Sequence[str]) -> Iterator[str]:
    """Yield the entries of pytest's last summary of failures: an id, and a message after ` - `."""
    heads = (at for at in range(len(lines) - 1, -1, -1) if _SUMMARY in lines[at])
    start = next((at for at in heads if _SECTION.match(lines[at])), len(lines))
    for line in lines[start:]:
        word, _, entry = line.partition(" ")
        if word in ("FAILED", "ERROR") and entry:
            yield entry


def _node_id(entry: str) -> str:
    """Return the id of an entry. Inside the brackets of a parametrized id, ` - ` belongs to the id."""
    head = entry.partition(" - ")[0]
    if "[" not in head:
        return head
    ends = [found.end(1) for found in re.finditer(r"(\]) - ", entry)] or [len(entry)]
    return entry[
        : next((end for end in ends if entry.count("[", 0, end) == entry.count("]", 0, end)), ends[0])
    ]


def _message(entry: str) -> list[str]:
    message = entry[len(_node_id(entry)) :].removeprefix(" - ")
    return [message] if message else []


def _key(test: str) -> str:
    """Return what all names of a test have in common: `Class.test_x[param]`, without the file."""
    if bare := _BARE.fullmatch(test):
        return _dotted(bare[1], bare[2])
    name, bracket, param = test.partition("[")
    name = name.partition(" (")[0]  # the parameters of a sub-test
    return (name.partition("::")[2] or name).replace("::", ".") + bracket + param


def _dotted(name: str, where: str) -> str:
    """Return the dotted name of a unittest. Before Python 3.11 `where` lacks the method."""
    return where if where.endswith(f".{name}") else f"{where}.{name}"
