"""A file that grows while a rollout runs: no secret in it, and a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import orjson

from swe_core.redact import Redactor


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
