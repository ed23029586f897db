"""Patches for a page: files, with their lines by what happens to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from pathlib import Path

from swe_core.system.files import open_below

MAX_PATCH = 4_000_000
"""Bytes that are read of a patch."""
MAX_FILES = 300
"""Files shown of a patch."""
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


@dataclass(slots=True)
class Patch:
    """A patch.

    Args:
        files: Its files, at most `MAX_FILES`.
        more_files: Number of the others that were read.
        added, removed: Numbers of lines, over all that was read.
        read, unread: Bytes that were read, and those after them.
        digest: Hash of all of it; None if it is empty or was not read to its end.
    """

    files: list[FileDiff] = field(default_factory=list)
    more_files: int = 0
    added: int = 0
    removed: int = 0
    read: int = 0
    unread: int = 0
    digest: bytes | None = None


def patch_at(path: Path, run: Path) -> Patch | None:
    """Return the patch in a file of the run directory `run`, of which `MAX_PATCH` bytes are read.

    Returns:
        None if there is no such file.
    """
    try:
        with open_below(path, run) as file:
            data = file.read(MAX_PATCH)
            unread = len(data) == MAX_PATCH and max(0, os.fstat(file.fileno()).st_size - len(data))
    except OSError:
        return None
    patch = patch_of(data)
    patch.unread = int(unread)
    patch.digest = blake2b(data).digest() if data and not unread else None
    return patch


def patch_of(data: bytes) -> Patch:
    """Return the patch of a git diff. It may be any text: what is no diff is a file without a name."""
    patch, left = Patch(read=len(data)), MAX_LINES
    for lines in _files(data.decode(errors="replace").split("\n")):
        one = _file(lines, min(left, MAX_FILE_LINES))
        patch.added += one.added
        patch.removed += one.removed
        if len(patch.files) == MAX_FILES:
            patch.more_files += 1
            continue
        left -= sum(text.count("\n") + 1 for _, text in one.parts)
        patch.files.append(one)
    return patch


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
    one = FileDiff(_path(head.removeprefix("diff --git ")) if head.startswith("diff --git ") else "")
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


def _path(names: str) -> str:
    """Return the path in `a/<path> b/<path>`; the new one if the file was renamed."""
    middle = len(names) // 2
    old, new = names[:middle].strip('"')[2:], names[middle + 1 :].strip('"')[2:]
    return new if old == new and new else names.rpartition(" b/")[2].rstrip('"')


def _header(one: FileDiff, line: str) -> None:
    if line.startswith("new file"):
        one.note = "new file"
    elif line.startswith("deleted file"):
        one.note = "deleted"
    elif line.startswith(("--- a/", '--- "a/', "+++ b/", '+++ "b/')) and one.path:
        one.path = line[4:].rstrip("\t").strip('"')[2:]
    elif line.startswith("rename to ") and one.path:
        one.path = line.removeprefix("rename to ").strip('"')
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
