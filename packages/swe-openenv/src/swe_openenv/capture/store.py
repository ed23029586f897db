"""Sessions on disk: a run directory whose folders are sessions, with a sub-folder for each part.

    run.json                         the format of the turns
    rollouts/DIGEST/session.json     SessionRecord, mode 0600
    rollouts/DIGEST/0/turns.jsonl    the calls of the first part
    rollouts/DIGEST/0/delivered      indices of the turns whose complete reply reached a client

A folder is named by a digest of the session's id, since the id is a key. A new part begins when a server
opens a session again, because its gate then counts from 0.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import orjson
from pydantic import ValidationError

from swe_core.api.records import Turn
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import FOLDERS, RUN_FILE, RolloutFolder, RunDirectory, new_run_info
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor
from swe_openenv.capture.options import SessionRecord

_RECORD = "session.json"
_DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class Part:
    """The calls that one gate recorded.

    Args:
        delivered: Indices of the turns whose complete reply reached a client.
    """

    number: int
    turns: list[Turn]
    delivered: frozenset[int]


class OpenPart:
    """The part that records now. The first call makes its folder."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self._path = path
        self._redactor = redactor
        self._folder: RolloutFolder | None = None
        self._closed = False

    def add_turn(self, turn: Turn) -> None:
        """Append a call."""
        if self._folder is None:
            self._folder = RolloutFolder(self._path, self._redactor)
        self._folder.add_turn(turn)

    def add_delivered(self, index: int) -> None:
        """Append the index of a turn whose complete reply reached a client; not after the end."""
        if not self._closed:
            with (self._path / _DELIVERED).open("ab") as file:
                file.write(b"%d\n" % index)

    def close(self) -> None:
        """Close the files; the turns are on disk when this returns."""
        self._closed = True
        if self._folder is not None:
            self._folder.close()


class SessionFolder:
    """One session on disk."""

    def __init__(self, run: RunDirectory, path: Path) -> None:
        self._run = run
        self._path = path

    @property
    def name(self) -> str:
        """Return the digest of the session's id."""
        return self._path.name

    def write(self, record: SessionRecord) -> None:
        """Write or replace the record.

        Raises:
            OSError: It cannot be written.
        """
        self._path.mkdir(mode=0o700, exist_ok=True)
        new = self._path / f"{_RECORD}.new"
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(orjson.dumps(record.model_dump(mode="json")))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path / _RECORD)

    def part(self, number: int) -> OpenPart:
        """Return the part `number`, to record into."""
        return OpenPart(self._path / str(number), self._run.redactor)

    def parts(self) -> list[Part]:
        """Read all parts.

        Raises:
            UsageError: A file is damaged; the sentence names it.
        """
        numbers = sorted(int(path.name) for path in self._path.iterdir() if path.name.isdecimal())
        return [
            Part(number, self._run.turns(self.name, str(number)), self._delivered(number))
            for number in numbers
        ]

    def forget(self) -> None:
        """Remove the record: the folder is then of no session, and the next start removes its rest."""
        (self._path / _RECORD).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._path, ignore_errors=True)

    def _delivered(self, number: int) -> frozenset[int]:
        try:
            lines = (self._path / str(number) / _DELIVERED).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return frozenset()
        return frozenset(int(line) for line in lines if line.endswith(b"\n"))


class Store:
    """The capture directory."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    @classmethod
    @contextmanager
    def opened(cls, path: Path, redactor: Redactor) -> Iterator[Store]:
        """Open the directory, or make it, for this process alone.

        Raises:
            UsageError: Another process uses it, it holds something else, or it cannot be written.
        """
        if not (path / RUN_FILE).exists():
            RunDirectory.create(path, new_run_info({"swe-core": version("swe-core")}, {}, None, ()), redactor)
        run = RunDirectory.open(path)
        run.redactor = redactor
        with locked(path):
            yield cls(run)

    def folder(self, session_id: str) -> SessionFolder:
        """Return the folder of a session, which need not exist."""
        digest = hashlib.sha256(session_id.encode()).hexdigest()[:32]
        return SessionFolder(self._run, self._run.path / FOLDERS / digest)

    def sessions(self) -> Iterator[tuple[SessionFolder, SessionRecord]]:
        """Yield the sessions; remove folders of deleted ones.

        Raises:
            UsageError: A record is damaged; the sentence names it.
        """
        for path in sorted((self._run.path / FOLDERS).iterdir()):
            folder = SessionFolder(self._run, path)
            try:
                record = SessionRecord.model_validate_json((path / _RECORD).read_bytes())
            except FileNotFoundError:
                folder.remove()
            except ValidationError:
                raise UsageError(f"{str(path / _RECORD)!r} is damaged: remove its folder") from None
            else:
                yield folder, record
