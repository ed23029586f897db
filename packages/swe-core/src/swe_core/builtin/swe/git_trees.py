"""Git trees as plain data: what is where in the base, and what each patch does to it.

A path is a str that holds git's bytes with `surrogateescape`, relative to the repository, never quoted.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LINK, SUBMODULE = "120000", "160000"
"""Modes of git: a symbolic link; a commit of another repository, which no file stands for."""

MAX_PATH = 4095
"""Bytes of the longest path that Linux takes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a tree holds at a path.

    Args:
        mode: `100644`, `100755`, `LINK` or `SUBMODULE`.
        id: The git id of its content.
    """

    mode: str
    id: str

    @property
    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return self.mode.startswith("100")


Changes = Mapping[str, Entry | None]
"""Path → what is there now, None where it is gone; only paths that differ from the base."""


@dataclass(frozen=True, slots=True)
class Trees:
    """The base of a task and what is made of it.

    Args:
        base: Every path of the base.
        model: What the patch to be graded changes.
        tests: What the task's test patch changes.
        reference: What the test patch and the gold patch change together.
        ignored: Paths on the sandbox's disk that git ignores; those that end in "/" are whole directories.
    """

    base: Mapping[str, Entry]
    model: Changes
    tests: Changes
    reference: Changes
    ignored: Sequence[str] = ()

    def in_model(self, path: str) -> Entry | None:
        """Return what the patch leaves at `path`."""
        return self.model[path] if path in self.model else self.base.get(path)

    def in_reference(self, path: str) -> Entry | None:
        """Return what the reference has at `path`."""
        return self.reference[path] if path in self.reference else self.base.get(path)

    def reference_paths(self) -> Iterator[str]:
        """Yield every path of the reference."""
        yield from (path for path in self.base if self.reference.get(path, True) is not None)
        yield from (p for p, entry in self.reference.items() if entry is not None and p not in self.base)


def ancestors(path: str) -> Iterator[str]:
    """Yield the directories above `path`, the nearest first, without the root; none where it is too long for
    Linux, since all of them together may exceed the memory. "/" is above itself."""
    while len(path) <= MAX_PATH and (above := posixpath.dirname(path)) and above != path:
        yield above
        path = above


def parse_listing(records: Sequence[str]) -> dict[str, Entry]:
    """Split the output of `git ls-tree -r -z` at NUL: `MODE TYPE ID<tab>PATH`."""
    found: dict[str, Entry] = {}
    for record in records:
        about, _, path = record.partition("\t")
        mode, _, identity = about.split(" ")
        found[path] = Entry(mode, identity)
    return found


def parse_changes(records: Sequence[str]) -> dict[str, Entry | None]:
    """Split the output of `git diff-tree -r -z` at NUL: `:OLD_MODE MODE OLD_ID ID STATUS` and the path."""
    found: dict[str, Entry | None] = {}
    for about, path in zip(records[::2], records[1::2], strict=True):
        _, mode, _, identity, status = about.split(" ")
        found[path] = None if status == "D" else Entry(mode, identity)
    return found


def parse_blobs(batch: bytes) -> dict[str, bytes]:
    """Parse the output of `git cat-file --batch`, by id: `ID TYPE SIZE`, newline, content, newline.
    What is missing, or no file, is left out."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(batch):
        head_end = batch.index(b"\n", at)
        identity, *about = batch[at:head_end].decode().split(" ")
        at = head_end + 1
        if len(about) == 2:  # else there is nothing with this id, or more than one thing
            kind, size = about
            if kind == "blob":
                found[identity] = batch[at : at + int(size)]
            at += int(size) + 1
    return found


def index_info(changes: Changes, id_length: int) -> bytes:
    """Return the input of `git update-index -z --index-info` for `changes`; removals come first."""
    lines = [f"0 {'0' * id_length}\t{path}\0" for path, entry in changes.items() if entry is None]
    lines += [f"{entry.mode} {entry.id}\t{path}\0" for path, entry in changes.items() if entry is not None]
    return "".join(lines).encode(errors="surrogateescape")


def blob_id(data: bytes, id_length: int) -> str:
    """Return git's id of a file with this content, in a repository whose ids have this length."""
    algorithm = hashlib.sha1 if id_length == 40 else hashlib.sha256
    return algorithm(b"blob %d\0" % len(data) + data).hexdigest()


def printable(path: str) -> str:
    """`path` as text that can be written anywhere: bytes that are not UTF-8 become `\\xNN`."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")
