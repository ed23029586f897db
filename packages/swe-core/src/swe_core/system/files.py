"""Write files atomically, append to files without secrets, and lock a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson

from swe_core.errors import SweError, UsageError
from swe_core.system.redaction import Redactor


def write_whole(path: Path, data: bytes, new: str = ".new") -> None:
    """Write or replace a file atomically: a reader sees all of the old content or all of the new.

    Args:
        new: Ends the name of the file while it is written. Concurrent writers need one each.

    Raises:
        OSError: It cannot be written, and is as before.
    """
    unfinished = path.with_name(path.name + new)
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # frees the space on a full disk
        raise


def write_out(path: Path, data: bytes, what: str, option: str) -> None:
    """Write `data` to `path` atomically. An existing file is replaced; a link stays a link.

    Args:
        what: The content as a noun, for the message, such as "the page".
        option: The option that named `path`.

    Raises:
        UsageError: `path` cannot be written, or is no file.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            raise UsageError(
                f"{what} cannot be written to {str(path)!r}, which is no file: give another {option}"
            )
        write_whole(target, data, f".{os.getpid()}.new")
    except OSError as error:
        raise UsageError(
            f"{what} cannot be written to {str(path)!r}: {error.strerror}; give another {option}"
        ) from None


def open_below(path: Path, root: Path) -> BinaryIO:
    """Open a file for reading in a directory that is not trusted, such as a downloaded run.

    Raises:
        FileNotFoundError: There is none.
        OSError: It is no regular file, such as a pipe that nobody writes, or a link leads out of `root`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        opened = f"/proc/self/fd/{descriptor}"  # the file itself: its path may change meanwhile
        real = Path(os.path.realpath(opened if os.path.exists(opened) else path))
        if not real.is_relative_to(os.path.realpath(root)):
            raise OSError(errno.EXDEV, "a link leads out of the run directory", str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


class AppendedFile:
    """An append-only file without known secrets. The first byte creates it.

    Args:
        path: Path of the file.
        redactor: Redactor of the secrets.
        limit: Maximum size, bytes. A last line says that the file is cut. None is no limit.
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
        """Append complete data, such as a line, that is already redacted."""
        self._append(data)

    def write_piece(self, data: bytes) -> None:
        """Append a piece of a stream. Secrets that span two pieces are redacted."""
        data, self._held = self._redactor.split(self._held + data)
        self._append(data)

    def close(self, *, sync: bool = False) -> None:
        """Write the rest and close the file. With `sync`, wait until it is on disk."""
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
"""Lock file in the run directory. The file stays; only a live process holds its lock."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the run directory: two runs in it would damage each other's records.

    The system releases the lock when the process exits in any way.

    Raises:
        UsageError: Another process holds the lock.
        SweError: The lock file cannot be written.
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


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of `locked`, without a moment in which this process does.

    Linux lists all locks in `/proc/locks`: `1: FLOCK ADVISORY WRITE <pid> <major>:<minor>:<inode> 0 EOF`.
    """
    try:
        inode = os.stat(directory / LOCK_FILE).st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any(" FLOCK " in line and f":{inode} " in line for line in lines)
