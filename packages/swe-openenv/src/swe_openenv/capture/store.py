"""Sessions on disk: a run directory whose folders are sessions, with a sub-folder for each part.

    run.json                         the format of the turns, and that this is a capture directory
    rollouts/DIGEST/session.json     SessionRecord, mode 0600
    rollouts/DIGEST/0/part.json      PartRecord: what answered its calls
    rollouts/DIGEST/0/turns.jsonl    the calls of the first part
    rollouts/DIGEST/0/delivered      indices of the turns whose complete reply reached a client

A folder is named by a digest of the session's id, since the id is a key. A new part begins when a server
opens a session again, because its gate then counts from 0. A deleted session's folder is renamed before it is
removed: only folders with such a name are removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import orjson
from pydantic import ValidationError

from swe_core.api.records import Turn
from swe_core.errors import SweError, UsageError, sentence
from swe_core.rollout.run_directory import FOLDERS, RUN_FILE, RolloutFolder, RunDirectory, new_run_info
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor
from swe_openenv.capture.options import PartRecord, SessionRecord

_RECORD = "session.json"
_NEW_RECORD = f"{_RECORD}.new"
_PART = "part.json"
_DELIVERED = "delivered"
_NAME = re.compile(r"[0-9a-f]{32}")
_DELETED = re.compile(r"[0-9a-f]{32}\.deleted-[0-9a-f]{16}")
_SETTINGS = {"capture": {"format": 1}}
"""Settings in `run.json`: what a capture directory is known by. `swe-core run --resume` refuses them."""
_DAMAGE = (SweError, OSError, ValueError, OverflowError)
"""What reading damaged files raises."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """The calls that one gate recorded.

    Args:
        record: What answered the calls.
        delivered: Indices of the turns whose complete reply reached a client.
    """

    number: int
    record: PartRecord
    turns: list[Turn]
    delivered: frozenset[int]


class OpenPart:
    """The part that records now. The first call makes its folder."""

    def __init__(self, path: Path, record: PartRecord, redactor: Redactor) -> None:
        self._path = path
        self._record = record
        self._redactor = redactor
        self._folder: RolloutFolder | None = None
        self._closed = False

    def add_turn(self, turn: Turn) -> None:
        """Append a call."""
        if self._folder is None:
            folder = RolloutFolder(self._path, self._redactor)
            _write(self._path / _PART, self._record)
            self._folder = folder
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
        _write(self._path / _RECORD, record)

    def part(self, number: int, record: PartRecord) -> OpenPart:
        """Return the part `number`, to record into."""
        return OpenPart(self._path / str(number), record, self._run.redactor)

    def parts(self) -> list[Part]:
        """Read all parts that have a call.

        Raises:
            UsageError: A file is damaged; the sentence names it.
            OSError: A file cannot be read.
        """
        return list(self._parts())

    def next_part(self) -> int:
        """Return the number of the next part."""
        return max(self._numbers(), default=-1) + 1

    def has_files(self) -> bool:
        """Return whether the folder holds more than a killed server leaves before a session is made."""
        return self._path.is_dir() and any(path.name != _NEW_RECORD for path in self._path.iterdir())

    def forget(self) -> Path:
        """Rename the folder, which is then of no session, and return its path; the next start removes it.

        Raises:
            OSError: It cannot be renamed.
        """
        return self._path.rename(self._path.with_name(f"{self.name}.deleted-{secrets.token_hex(8)}"))

    def _numbers(self) -> list[int]:
        return sorted(int(path.name) for path in self._path.iterdir() if path.name.isdecimal())

    def _parts(self) -> Iterator[Part]:
        for number in self._numbers():
            turns = self._run.turns(self.name, str(number))
            if turns:  # else the server was killed before it wrote the part's record
                yield Part(number, self._record(number), turns, self._delivered(number))

    def _record(self, number: int) -> PartRecord:
        path = self._path / str(number) / _PART
        try:
            return PartRecord.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            raise UsageError(f"{str(path)!r} is missing or damaged") from None

    def _delivered(self, number: int) -> frozenset[int]:
        path = self._path / str(number) / _DELIVERED
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return frozenset()
        try:
            return frozenset(int(line) for line in lines if line.endswith(b"\n"))
        except ValueError:
            raise UsageError(f"a line of {str(path)!r} is no index of a call") from None


class Store:
    """The capture directory."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    @classmethod
    @contextmanager
    def opened(cls, path: Path, redactor: Redactor) -> Iterator[Store]:
        """Open the directory, or make it, for this process alone.

        Raises:
            UsageError: Another process uses it, it is no capture directory, or it cannot be written.
        """
        if not (path / RUN_FILE).exists():
            info = new_run_info({"swe-core": version("swe-core")}, _SETTINGS, None, ())
            RunDirectory.create(path, info, redactor)
        run = RunDirectory.open(path)
        if run.info.settings != _SETTINGS:
            raise UsageError(f"{str(path)!r} is a run's and no capture directory: give another with --out")
        run.redactor = redactor
        with locked(path):
            yield cls(run)

    def folder(self, session_id: str) -> SessionFolder:
        """Return the folder of a session, which need not exist."""
        return SessionFolder(self._run, self._run.path / FOLDERS / _digest(session_id))

    def sessions(self) -> Iterator[tuple[SessionFolder, SessionRecord, list[Part]]]:
        """Yield the sessions with their parts, and remove folders of deleted ones.

        A damaged session is left out and said in the log; its folder stays. So does what is no session's.

        Raises:
            OSError: The directory cannot be read.
        """
        for path in sorted((self._run.path / FOLDERS).iterdir()):
            if _DELETED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
            elif _NAME.fullmatch(path.name) and path.is_dir():
                folder = SessionFolder(self._run, path)
                if not folder.has_files():
                    continue
                try:
                    yield folder, _session_record(path), folder.parts()
                except _DAMAGE as error:
                    log.warning("the session in %r stays closed: %s", str(path), sentence(error))


def _session_record(path: Path) -> SessionRecord:
    try:
        record = SessionRecord.model_validate_json((path / _RECORD).read_bytes())
    except ValidationError:
        raise UsageError(f"{_RECORD} is damaged") from None
    if _digest(record.session_id) != path.name:
        raise UsageError(f"{_RECORD} is of another folder")
    return record


def _write(path: Path, record: SessionRecord | PartRecord) -> None:
    """Write or replace a record, which only this user may read; it is on disk when this returns."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(orjson.dumps(record.model_dump(mode="json")))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)  # a reader sees all of the old record or all of the new


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]
