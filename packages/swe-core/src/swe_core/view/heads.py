"""Heads: what lists of rollouts show, read from `rollouts.jsonl` as it grows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from swe_core.api.records import Rollout
from swe_core.errors import UsageError
from swe_core.report.finished import HEAD, RolloutHead
from swe_core.rollout.run_directory import ROLLOUTS_FILE
from swe_core.system.files import open_below


class Heads:
    """The finished rollouts of a run directory, of which each call of `refresh` reads only what is new.

    Attributes:
        version: Changes whenever the list changes.
    """

    def __init__(self, run: Path) -> None:
        self.version = 0
        self._path = run / ROLLOUTS_FILE
        self._by_id: dict[str, RolloutHead] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._read = 0
        self._file: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> Sequence[RolloutHead]:
        """Return the heads in the order in which the rollouts finished."""
        return list(self._by_id.values())

    def get(self, rollout_id: str) -> RolloutHead | None:
        """Return the head of a finished rollout."""
        return self._by_id.get(rollout_id)

    def signature(self) -> tuple[int, int] | None:
        """Return what changes with the file: its inode and its size; None without a file."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size

    def refresh(self) -> None:
        """Read the lines that were added. A file that was replaced or cut is read again.

        Raises:
            UsageError: The file cannot be read, or a line is damaged; the message names it.
        """
        try:
            with open_below(self._path, self._path.parent) as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._file or status.st_size < self._read:
                    self._by_id, self._read, self._file = {}, 0, identity
                    self.version += 1
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._add(line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"cannot read {str(self._path)!r}: {error.strerror}") from None

    def record(self, head: RolloutHead) -> Rollout:
        """Return the whole record of a finished rollout.

        Raises:
            UsageError: The file has changed meanwhile.
        """
        with open_below(self._path, self._path.parent) as file:
            offset, size = self._places[head.id]
            file.seek(offset)
            line = file.read(size)
        try:
            return Rollout.model_validate_json(line)
        except ValueError:
            raise UsageError(f"{str(self._path)!r} has changed: load the page again") from None

    def _add(self, line: bytes) -> None:
        try:
            head = HEAD.validate_json(line, strict=True)
        except (ValueError, OverflowError):
            raise UsageError(
                f"{str(self._path)!r} is damaged at byte {self._read:,}: the line is not a finished rollout"
            ) from None
        self._by_id.pop(head.id, None)  # of an id that occurs twice, the last line counts
        self._by_id[head.id] = head
        self._places[head.id] = self._read, len(line)
        self._read += len(line)
        self.version += 1
