"""The run directory: append-only, crash-safe. The format is documented in docs/internals/run-directory.md."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError

from swe_core.api.agent import AgentEvent
from swe_core.api.chain import Chain
from swe_core.api.records import (
    FOREIGN,
    FORMAT_VERSION,
    UNDELIVERED,
    Foreign,
    Outcome,
    Record,
    Rollout,
    Turn,
    Undelivered,
)
from swe_core.errors import UsageError
from swe_core.system.files import LOCK_FILE, AppendedFile, locked, open_below, write_whole
from swe_core.system.redaction import Redactor

RUN_FILE = "run.json"
ROLLOUTS_FILE = "rollouts.jsonl"
FOLDERS = "rollouts"
TURNS_FILE = "turns.jsonl"
TRANSCRIPT_FILE = "transcript.jsonl"
PATCH_FILE = "patch.diff"
TEST_LOG_FILE = "test.log"
UNSHAPED_FILE = "unshaped.json"

_NEW = ".new"
"""Suffix of a file that replaces another once it is whole."""

M = TypeVar("M", bound=BaseModel)

MAX_LOG = 32 * 1024 * 1024
"""Bytes kept of an agent's output, and as many of its transcript; later bytes are only counted."""


class Change(Record):
    """A setting that a resume has changed."""

    at: datetime
    setting: str = Field(description="its full name, such as `run.concurrency`")
    before: Any = Field(description="null for one that was not set")
    after: Any


class RunInfo(Record):
    """`run.json`: what this run is. Written at its start; a resume changes at most `format`, `settings` and
    `changes`."""

    format: int = FORMAT_VERSION
    created_at: datetime
    versions: dict[str, str]
    settings: dict[str, Any]
    directory: str | None = Field(
        default=None, description="where the run was started: the base of relative paths in the settings"
    )
    planned: int | None
    notes: tuple[str, ...] = ()
    tasks: dict[str, str] = Field(
        default_factory=dict, description="task id → digest of the task, in the order of the tasks"
    )
    changes: tuple[Change, ...] = Field(
        default=(),
        description="settings that a resume has changed, the oldest first; `settings` has the last",
    )


class RolloutFolder:
    """One rollout's folder: turns, transcript, agent output, patch, grade and test log.

    Attributes:
        failure: The first error of a write, such as a full disk; the rollout's files are then incomplete.
    """

    def __init__(self, path: Path, redactor: Redactor) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.failure: OSError | None = None
        self._redactor = redactor
        self._begin()

    def _begin(self) -> None:
        self._turns = AppendedFile(self.path / TURNS_FILE, self._redactor, None)
        self._transcript = AppendedFile(self.path / TRANSCRIPT_FILE, self._redactor, MAX_LOG)
        self._output = AppendedFile(self.path / "agent.log", self._redactor, MAX_LOG)

    def add_turn(self, turn: Turn) -> None:
        """Append one LLM call to `turns.jsonl`."""
        with self._writing():
            line = self._redactor.value(turn.model_dump(mode="json", exclude={"tokens"}))
            # Not redacted: digits of ids and log-probabilities are no text.
            line["tokens"] = turn.tokens and turn.tokens.model_dump(mode="json")
            self._turns.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def add_undelivered(self, indices: Sequence[int]) -> None:
        """Append the last line of `turns.jsonl`: the calls whose replies never reached the agent."""
        with self._writing():
            self._turns.write(_line(Undelivered(undelivered=tuple(indices))))

    def add_foreign(self, indices: Sequence[int]) -> None:
        """Append to `turns.jsonl`, before `add_undelivered`, which calls are not the agent's own."""
        with self._writing():
            self._turns.write(_line(Foreign(foreign=tuple(indices))))

    def add_event(self, event: AgentEvent) -> None:
        """Append one event to `transcript.jsonl`."""
        with self._writing():
            self._transcript.write(self._redactor.data(_line(event)))

    def add_output(self, data: bytes) -> None:
        """Append raw output of the agent's process to `agent.log`."""
        with self._writing():
            self._output.write_piece(data)

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file, `name`, into the folder."""
        with self._writing():
            (self.path / name).write_bytes(self._redactor.data(data))

    def put_patch(self, patch: bytes) -> None:
        """Write `patch.diff` byte for byte, not redacted: it is what the grader gets."""
        with self._writing():
            (self.path / PATCH_FILE).write_bytes(patch)

    def close(self) -> None:
        """Close the files; the turns are on disk when this returns."""
        with self._writing():
            self._turns.close(sync=True)  # before the rollout counts as finished: a trainer needs them
            self._transcript.close()
            self._output.close()

    def archive_attempt(self, name: str) -> None:
        """Move all files into the new folder `name` inside this one, and start new ones."""
        self.close()
        self._begin()
        with self._writing():
            files = [path for path in self.path.iterdir() if path.is_file()]
            (self.path / name).mkdir()
            for path in files:
                path.rename(self.path / name / path.name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = self.failure or error
            raise


class RunDirectory:
    """A run on disk: `run.json`, `rollouts.jsonl`, and a folder for each rollout."""

    def __init__(self, path: Path, info: RunInfo, redactor: Redactor) -> None:
        self.path = path
        self.info = info
        self.redactor = redactor

    @classmethod
    def create(cls, path: Path, info: RunInfo, redactor: Redactor) -> RunDirectory:
        """Create a run directory.

        Raises:
            UsageError: `path` exists and is not empty, or cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            _require_empty(path)
            with locked(path):
                _require_empty(path)
                (path / FOLDERS).mkdir(exist_ok=True)
                write_whole(path / RUN_FILE, _pretty(info, redactor))  # last: makes it a run directory
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {str(path)!r}: {error.strerror}; give another with --out"
            ) from None
        return cls(path, info, redactor)

    @staticmethod
    def require_free(path: Path) -> None:
        """Refuse a path that `create` would refuse for what is there.

        Raises:
            UsageError: `path` is a file, or a directory that is not empty.
        """
        try:
            _require_empty(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {str(path)!r}: {error.strerror}; give another with --out"
            ) from None

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open a run directory for reading.

        Raises:
            UsageError: It is no run directory, or has another format.
        """
        try:
            raw = orjson.loads((path / RUN_FILE).read_bytes())
        except OSError:
            raise UsageError(f"{str(path)!r} is not a run directory: it has no readable {RUN_FILE}") from None
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{str(path / RUN_FILE)!r} is not JSON: {error}") from None
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT_VERSION:
            raise UsageError(
                f"the run directory {str(path)!r} has format {found!r}, and this version of swe-core reads "
                f"{FORMAT_VERSION}: read it with the version that wrote it, which {RUN_FILE} names"
            )
        try:
            info = RunInfo.model_validate(raw)
        except ValidationError:
            raise UsageError(f"{str(path / RUN_FILE)!r} is damaged: it lacks fields of its format") from None
        return cls(path, info, Redactor())

    @classmethod
    def resume(cls, path: Path, redactor: Redactor, again: Collection[Outcome] = ()) -> RunDirectory:
        """Open a run directory to resume its run, which the caller has locked (`swe_core.system.files`).

        An incomplete last line and the folders of unfinished rollouts are removed, except those set aside.

        Args:
            again: Rollouts with these outcomes are removed too, so that they run again. One that a worker
                cancelled for a reason stays.

        Raises:
            UsageError: It is no run directory, has another format, or cannot be written.
        """
        run = cls.open(path)
        run.redactor = redactor
        file = path / ROLLOUTS_FILE
        found = list(_heads(file))
        finished = {head.id for head in found if head.outcome not in again or head.cancelled_as is not None}
        try:
            if len(finished) < len(found):
                write_whole(file, b"".join(head.line for head in found if head.id in finished))
            elif file.exists():
                os.truncate(file, sum(len(head.line) for head in found))
            for folder in (path / FOLDERS).iterdir():
                if folder.name not in finished and not (folder / UNSHAPED_FILE).is_file():
                    shutil.rmtree(folder)
        except OSError as error:
            raise UsageError(
                f"the run directory {str(path)!r} cannot be resumed: {error.strerror or error}"
            ) from None
        return run

    def rewrite(self, info: RunInfo) -> None:
        """Replace `run.json`, atomically. The caller has locked the directory.

        Raises:
            OSError: It cannot be written.
        """
        write_whole(self.path / RUN_FILE, _pretty(info, self.redactor))
        self.info = info

    def folder(self, rollout_id: str) -> RolloutFolder:
        """Create the folder of one rollout."""
        return RolloutFolder(self.path / FOLDERS / rollout_id, self.redactor)

    def append(self, rollout: Rollout) -> None:
        """Append one finished rollout as a line, and sync it to disk."""
        descriptor = os.open(self.path / ROLLOUTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            data = self.redactor.data(_line(rollout))
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            except OSError:  # a full disk: half a line would make every later line invalid
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)

    def set_aside(self, rollout: Rollout) -> None:
        """Keep a rollout that has a verdict and no final reward, in its folder. It is not finished."""
        write_whole(self.path / FOLDERS / rollout.id / UNSHAPED_FILE, self.redactor.data(_line(rollout)))

    def take_back(self, rollout_id: str) -> None:
        """Forget that a rollout was set aside: it is finished."""
        (self.path / FOLDERS / rollout_id / UNSHAPED_FILE).unlink()

    def unshaped(self) -> list[Rollout]:
        """Return the rollouts that are set aside.

        Raises:
            UsageError: The file of one is damaged.
        """
        finished = self.finished()
        files = [folder / UNSHAPED_FILE for folder in sorted((self.path / FOLDERS).iterdir())]
        return [
            rollout
            for file in files
            if file.parent.name not in finished
            for rollout in _read_lines(file, self.path, Rollout, "a finished rollout")
        ]

    def rollouts(self) -> list[Rollout]:
        """Return the finished rollouts, in the order in which they finished.

        An incomplete last line is left out. Of an id that occurs twice, in files that were joined, the last
        line counts.

        Raises:
            UsageError: A line in the middle is damaged; the message names it.
        """
        lines = _read_lines(self.path / ROLLOUTS_FILE, self.path, Rollout, "a finished rollout")
        return list({rollout.id: rollout for rollout in lines}.values())

    def finished(self) -> dict[str, Outcome]:
        """Return id → outcome of `rollouts`, much faster than that.

        Raises:
            UsageError: A line in the middle is damaged; the message names it.
        """
        return {head.id: head.outcome for head in self.heads()}

    def heads(self) -> list[Head]:
        """Return the heads of `rollouts`, in the order in which they finished.

        Raises:
            UsageError: A line in the middle is damaged; the message names it.
        """
        return list({head.id: head for head in _heads(self.path / ROLLOUTS_FILE)}.values())

    def chains(self, rollout_id: str) -> Sequence[Chain]:
        """Return the training rows of one rollout, made again from its calls on disk.

        Raises:
            UsageError: As in `turns`.
            LedgerError: The records do not fit together.
        """
        from swe_core.tokens.chains import chains_of  # with numpy

        return chains_of(self.turns(rollout_id))

    def turns(self, rollout_id: str, retried: str = "") -> list[Turn]:
        """Return the LLM calls of one rollout, in the order in which they ended.

        An incomplete last line is left out. The tokens of calls whose reply never reached the agent have
        `UNDELIVERED` as their `dropped`, those of calls that are not the agent's `FOREIGN`.

        Args:
            retried: `Retried.folder` of a failed attempt; empty for the last one.

        Raises:
            UsageError: A line in the middle is damaged; the message names it.
        """
        path = self.path / FOLDERS / rollout_id / retried / TURNS_FILE
        lines, lost = _whole_lines(path, self.path), dict[int, str]()
        if lines and lines[-1].startswith(b'{"undelivered":'):
            (last,) = _parsed(path, {len(lines): lines.pop()}, Undelivered, "a list of calls")
            lost |= dict.fromkeys(last.undelivered, UNDELIVERED)
        if lines and lines[-1].startswith(b'{"foreign":'):
            (others,) = _parsed(path, {len(lines): lines.pop()}, Foreign, "a list of calls")
            lost |= dict.fromkeys(others.foreign, FOREIGN)
        turns = _parsed(path, dict(enumerate(lines, 1)), Turn, "a recorded call")
        return [_dropped(turn, lost[turn.index]) if turn.index in lost else turn for turn in turns]

    def events(self, rollout_id: str) -> list[AgentEvent]:
        """Return the transcript of one rollout; an incomplete last line is left out.

        Raises:
            UsageError: A line in the middle is damaged; the message names it.
        """
        path = self.path / FOLDERS / rollout_id / TRANSCRIPT_FILE
        return _read_lines(path, self.path, AgentEvent, "an agent's event")

    def patch(self, rollout_id: str) -> bytes | None:
        """Return `patch.diff` of one rollout; None without one."""
        return self._content(self.path / FOLDERS / rollout_id / PATCH_FILE)

    def test_log(self, rollout_id: str) -> bytes | None:
        """Return `test.log` of one rollout; None without one."""
        return self._content(self.path / FOLDERS / rollout_id / TEST_LOG_FILE)

    def _content(self, path: Path) -> bytes | None:
        """Return the bytes of a file of the run; None if it is absent or unsafe to open."""
        try:
            with open_below(path, self.path) as file:
                return file.read()
        except OSError:
            return None


def new_run_info(
    versions: Mapping[str, str],
    settings: Mapping[str, Any],
    planned: int | None,
    notes: Sequence[str],
    tasks: Mapping[str, str] | None = None,
) -> RunInfo:
    """Return the `RunInfo` of a run that starts now."""
    return RunInfo(
        created_at=datetime.now(UTC),
        versions=dict(versions),
        settings=dict(settings),
        directory=working_directory(),
        planned=planned,
        notes=tuple(notes),
        tasks=dict(tasks or {}),
    )


def working_directory() -> str | None:
    """Return the working directory of this process; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _require_empty(path: Path) -> None:
    """Check that a directory holds nothing, or no more than an interrupted `RunDirectory.create` leaves.

    Raises:
        UsageError: It holds more.
    """
    for entry in path.iterdir():
        if entry.name in (LOCK_FILE, RUN_FILE + _NEW):
            continue
        if entry.name != FOLDERS or not entry.is_dir() or any(entry.iterdir()):
            raise UsageError(f"the run directory {str(path)!r} is not empty: give another with --out")


def _whole_lines(path: Path, run: Path) -> list[bytes]:
    """Return the lines of a file of a run with their line ends, without one that a crash cut short.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        with open_below(path, run) as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _read_lines(path: Path, run: Path, model: type[M], what: str) -> list[M]:
    return _parsed(path, dict(enumerate(_whole_lines(path, run), 1)), model, what)


def _dropped(turn: Turn, reason: str) -> Turn:
    tokens = turn.tokens and turn.tokens.model_copy(update={"dropped": reason})
    return turn.model_copy(update={"tokens": tokens})


def _parsed(path: Path, lines: Mapping[int, bytes], model: type[M], what: str) -> list[M]:
    """Parse lines of the file `path`; the keys of `lines` are line numbers."""
    found: list[M] = []
    for number, line in lines.items():
        try:
            found.append(model.model_validate_json(line))
        except ValidationError:
            raise UsageError(f"line {number} of {str(path)!r} is not {what}") from None
    return found


class Head(NamedTuple):
    """What is read of a finished rollout without validating the rest of its line."""

    id: str
    outcome: Outcome
    cancelled_as: str | None
    agent: str
    model: str
    evaluation: int | None
    line: bytes

    @property
    def interrupted(self) -> bool:
        """Return whether a signal cancelled it, so that a resumed run runs it again."""
        return self.outcome == "cancelled" and self.cancelled_as is None


def _heads(path: Path) -> Iterator[Head]:
    for number, line in enumerate(_whole_lines(path, path.parent), 1):
        try:
            raw = orjson.loads(line)
            more = raw.get("cancelled_as"), raw.get("agent", ""), raw.get("model", ""), raw.get("evaluation")
            yield Head(raw["id"], raw["outcome"], *more, line)
        except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError):
            raise UsageError(f"line {number} of {str(path)!r} is not a finished rollout") from None


def _line(model: BaseModel) -> bytes:
    return orjson.dumps(model.model_dump(mode="json")) + b"\n"


def _pretty(model: BaseModel, redactor: Redactor) -> bytes:
    return redactor.data(orjson.dumps(model.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n")
