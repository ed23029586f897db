"""Patches for a page: files, with their lines by what happens to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

MAX_LINES = 3_000
"""Lines shown of a patch."""
MAX_FILE_LINES = 600
"""Lines shown of one file."""
OPEN_LINES = 120
"""A file with more lines is folded."""
_MAX_WIDTH = 2_000


@dataclass(slots=True)
class FileDiff:
    """One file of a patch.

    Args:
        path: In the repository; of a renamed file the new one.
        note: What happens to it as a whole, such as `new file`; empty where its lines change.
        added, removed: Numbers of lines, over all of the file.
        parts: Consecutive lines of one kind: `added`, `removed`, `hunk` or `same`.
        left_out: Lines that `parts` does not have.
    """

    path: str
    note: str = ""
    added: int = 0
    removed: int = 0
    parts: list[tuple[str, str]] = field(default_factory=list)
    left_out: int = 0

    @property
    def lines(self) -> int:
        """Return the number of its changed lines."""
        return self.added + self.removed


def file_diffs(patch: bytes) -> list[FileDiff]:
    """Return the files of a git diff. It may be any text: what is no diff is a file without a name."""
    found, left = [], MAX_LINES
    for lines in _files(patch.decode(errors="replace").split("\n")):
        one = _file(lines, min(left, MAX_FILE_LINES))
        left -= sum(text.count("\n") + 1 for _, text in one.parts)
        found.append(one)
    return found


def _files(lines: Iterable[str]) -> Iterator[list[str]]:
    found: list[str] = []
    for line in lines:
        if line.startswith("diff --git "):
            if any(found):
                yield found
            found = []
        found.append(line)
    if any(found):
        yield found


def _file(lines: list[str], room: int) -> FileDiff:
    head = lines[0]
    one = FileDiff(head.rpartition(" b/")[2].rstrip('"') if head.startswith("diff --git ") else "")
    body: list[tuple[str, str]] = []
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("@@ "):
            inside = True
            body.append(("hunk", line))
        elif not inside and line.startswith("GIT binary patch"):
            one.note = f"{one.note}, binary" if one.note else "binary"
            one.left_out = len(lines) - number - 1
            return one
        elif not inside:
            _header(one, line)
        elif line.startswith("+"):
            one.added += 1
            body.append(("added", line))
        elif line.startswith("-"):
            one.removed += 1
            body.append(("removed", line))
        elif line or number < len(lines) - 1:
            body.append(("same", line))
    if not inside and not one.path:
        body = [("same", line) for line in lines]
    room = max(0, room)
    one.left_out = max(0, len(body) - room)
    one.parts = [
        (kind, "\n".join(_cut(line) for _, line in group))
        for kind, group in groupby(body[:room], key=lambda part: part[0])
    ]
    return one


def _header(one: FileDiff, line: str) -> None:
    if line.startswith("new file"):
        one.note = "new file"
    elif line.startswith("deleted file"):
        one.note = "deleted"
    elif line.startswith("rename from "):
        one.note = f"renamed from {line.removeprefix('rename from ')}"
    elif line.startswith("old mode "):
        one.note = "other mode"
    elif line.startswith("Binary files "):
        one.note = f"{one.note}, binary" if one.note else "binary"


def _cut(line: str) -> str:
    return (
        line
        if len(line) <= _MAX_WIDTH
        else f"{line[:_MAX_WIDTH]} … {len(line) - _MAX_WIDTH:,} more characters"
    )
