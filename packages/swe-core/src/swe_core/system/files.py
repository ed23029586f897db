"""Files: written whole or not at all where the user says; appended to; locked while a run writes them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from swe_core.errors import SweError, UsageError
from swe_core.system.redaction import Redactor


def write_out(path: Path, data: bytes, what: str, option: str) -> None:
    """Write `data` to `path`; what is there is replaced, and a link stays a link.

    Args:
        what: What is written, for the message, such as "the page".
        option: The option that named `path`.

    Raises:
        UsageError: `path` cannot be written, or is no file.
    """
    target = Path(os.path.realpath(path))
    unfinished = target.parent / f".swe-core-{os.getpid()}-{target.name}"
    try:
        if target.exists() and not target.is_file():
            raise UsageError(
                f"{what} cannot be written to {str(path)!r}, which is no file: give another {option}"
            )
        try:
            unfinished.write_bytes(data)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{what} cannot be written to {str(path)!r}: {error.strerror}; give another {option}"
        ) from None


class AppendedFile:
    """A file that is only appended to, without the secrets that are known. It is made with its first byte.

    Args:
        path: Of the file.
        redactor: Knows the secrets.
        limit: Bytes at which it stops growing and says so; None is no limit.
    """

    def __init__(self, path: Path, redactor: Redactor, limit: int | None) -> None:
        self._path = path
        self._redactor = redactor
        self._limit = limit
        self._file: BinaryIO | None = None
        self._size = 0
        self._full = False
        self._held = b""

    def write(self, data: bytes) -> None:
        """Append something whole, such as a line, in which no secret is any more."""
        self._append(data)

    def write_piece(self, data: bytes) -> None:
        """Append a piece of a stream; a secret that was torn between two pieces is still found."""
        data, self._held = self._redactor.split(self._held + data)
        self._append(data)

    def close(self, *, sync: bool = False) -> None:
        """Write what was held back, and close it. With `sync` it is on disk when this returns."""
        self._append(self._redactor.data(self._held))
        if self._file is not None:
            if sync:
                os.fsync(self._file.fileno())
            self._file.close()

    def _append(self, data: bytes) -> None:
        if self._full or not data:
            return
        if self._file is None:
            self._file = self._path.open("ab")
        if self._limit is not None and self._size + len(data) > self._limit:
            self._full = True
            data = orjson.dumps({"kind": "info", "text": f"cut here: more than {self._limit} bytes"}) + b"\n"
        self._size += len(data)
        self._file.write(data)
        self._file.flush()


LOCK_FILE = "lock"
"""In the run directory. It stays there; what counts is whether a living process has locked it."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes out of the run directory: two runs in it would spoil each other's records.

    The system gives the lock back when its process ends, however it does.

    Raises:
        UsageError: Another process is in it.
        SweError: The lock cannot be written.
    """
    try:
        file = (directory / LOCK_FILE).open("ab")
    except OSError as error:
        raise SweError(f"cannot write {str(directory / LOCK_FILE)!r}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the run in {str(directory)!r} is in use by another process: wait for it, or stop it"
            ) from None
        yield
