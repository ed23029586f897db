"""Heads: what lists of rollouts show, in little memory, read from `rollouts.jsonl` as it grows."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, get_args

import orjson

from swe_core.api.grader import TamperKind
from swe_core.api.records import EVALUATION, Budget, Outcome, Rollout
from swe_core.errors import Boundary, UsageError
from swe_core.rollout.run_directory import ROLLOUTS_FILE
from swe_core.system.files import open_below

_GROUP = re.compile(r"-g(\d+)-\d+(-\d+)?")
"""What follows the task in a rollout's id in a training: group, attempt, and a number if it ran again."""
_MAX_MESSAGE = 2_000
_PART = re.compile(r"[^/\\\0]{1,255}")
_OUTCOMES = frozenset(get_args(Outcome))


class HeadFailure(NamedTuple):
    boundary: Boundary
    type: str
    message: str


class HeadUsage(NamedTuple):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class HeadPhases(NamedTuple):
    """Seconds of each phase; None for one that the rollout did not reach."""

    open: float | None = None
    prepare: float | None = None
    agent: float | None = None
    export: float | None = None
    grade: float | None = None


class HeadTampering(NamedTuple):
    kind: TamperKind


class HeadSuspicion(NamedTuple):
    kind: str


class HeadGrade(NamedTuple):
    resolved: bool
    reason: str
    unchecked: str
    tampering: tuple[HeadTampering, ...]
    suspicious: tuple[HeadSuspicion, ...]


class HeadSandbox(NamedTuple):
    flavor: str | None
    sandboxes: int
    seconds: float


class HeadTry(NamedTuple):
    failure: HeadFailure
    usage: HeadUsage
    seconds: float


class HeadLedger(NamedTuple):
    """As `swe_core.api.records.Ledger`."""

    sampled: int
    trainable: int
    dropped: Mapping[str, int]
    chains: int
    forks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Head:
    """One finished rollout without the statuses of its tests; see `swe_core.report.finished.Finished`.

    Args:
        started_at: Start, seconds since the epoch.
        offset, size: Place of its line in the file, bytes.
    """

    id: str
    task_id: str
    attempt: int
    agent: str
    sandbox: str
    engine: str
    model: str
    outcome: Outcome
    reward: float | None
    unshaped_reward: float | None
    evaluation: int | None
    cancelled_as: str | None
    ended_by: Budget | None
    failure: HeadFailure | None
    grade: HeadGrade | None
    turns: int
    usage: HeadUsage
    ledger: HeadLedger | None
    phases: HeadPhases
    sandboxes: tuple[HeadSandbox, ...]
    retried: tuple[HeadTry, ...]
    patch_bytes: int
    started_at: float
    seconds: float
    offset: int
    size: int

    @property
    def group(self) -> str:
        """Return the key of its group: `g<number>` in a training, else its task."""
        own = self.id.startswith(self.task_id)
        found = _GROUP.fullmatch(self.id, len(self.task_id)) if own else None
        return f"g{found[1]}" if found else self.task_id

    @property
    def interrupted(self) -> bool:
        """Return whether a signal cancelled it, so that a resumed run runs it again."""
        return self.outcome == "cancelled" and self.cancelled_as is None

    @property
    def not_trained(self) -> str | None:
        """Return why no token of it is trained, as `swe_core.api.records.Rollout.not_trained`."""
        if self.reward is None:
            return self.cancelled_as or self.outcome
        return None if self.evaluation is None else EVALUATION


class Heads:
    """The finished rollouts of a run directory, of which each call of `refresh` reads only what is new.

    Attributes:
        version: Changes whenever the list changes.
    """

    def __init__(self, run: Path) -> None:
        self.version = 0
        self._path = run / ROLLOUTS_FILE
        self._by_id: dict[str, Head] = {}
        self._read = 0
        self._file: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> Sequence[Head]:
        """Return the heads in the order in which the rollouts finished."""
        return list(self._by_id.values())

    def get(self, rollout_id: str) -> Head | None:
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

    def record(self, head: Head) -> Rollout:
        """Return the whole record of a finished rollout.

        Raises:
            UsageError: The file has changed meanwhile.
        """
        with open_below(self._path, self._path.parent) as file:
            file.seek(head.offset)
            line = file.read(head.size)
        try:
            return Rollout.model_validate_json(line)
        except ValueError:
            raise UsageError(f"{str(self._path)!r} has changed: load the page again") from None

    def _add(self, line: bytes) -> None:
        try:
            head = _head(orjson.loads(line), self._read, len(line))
            _check(head)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise UsageError(
                f"{str(self._path)!r} is damaged at byte {self._read:,}: the line is not a finished rollout"
            ) from None
        self._by_id.pop(head.id, None)  # of an id that occurs twice, the last line counts
        self._by_id[head.id] = head
        self._read += len(line)
        self.version += 1


def is_path_part(text: object) -> bool:
    """Return whether a value is a text that can be one part of a path, and of a URL."""
    if not isinstance(text, str) or text in (".", "..") or not _PART.fullmatch(text):
        return False
    try:
        return text.isascii() or len(text.encode()) <= 255
    except UnicodeEncodeError:  # the name of a file that is no UTF-8
        return False


def _check(head: Head) -> None:
    """Check what pages count, sort and link.

    Raises:
        ValueError: A value is of another type.
    """
    texts = (head.agent, head.sandbox, head.engine, head.model, head.cancelled_as or "", head.ended_by or "")
    numbers = (head.attempt, head.turns, *head.usage, head.patch_bytes, head.evaluation or 0)
    seconds = (head.reward, head.unshaped_reward, *head.phases)
    if not (
        is_path_part(head.id)
        and is_path_part(head.task_id)
        and head.outcome in _OUTCOMES
        and {type(each) for each in texts} == {str}
        and {type(each) for each in numbers} == {int}
        and {type(each) for each in seconds} <= {float, int, type(None)}
        and type(head.seconds) in (float, int)
    ):
        raise ValueError(head.id)


def _head(raw: Mapping[str, Any], offset: int, size: int) -> Head:
    grade, ledger = raw.get("grade"), raw.get("ledger")
    return Head(
        id=raw["id"],
        task_id=raw["task_id"],
        attempt=raw["attempt"],
        agent=raw["agent"],
        sandbox=raw["sandbox"],
        engine=raw["engine"],
        model=raw["model"],
        outcome=raw["outcome"],
        reward=raw["reward"],
        unshaped_reward=raw["unshaped_reward"],
        evaluation=raw.get("evaluation"),
        cancelled_as=raw.get("cancelled_as"),
        ended_by=raw.get("ended_by"),
        failure=_failure(raw["failure"]) if raw.get("failure") else None,
        grade=_grade(grade) if grade else None,
        turns=raw["turns"],
        usage=_usage(raw["usage"]),
        ledger=ledger
        and HeadLedger(
            ledger["sampled"],
            ledger["trainable"],
            ledger["dropped"],
            ledger["chains"],
            ledger["forks"],
        ),
        phases=HeadPhases(**raw["phases"]),
        sandboxes=tuple(
            HeadSandbox(one["flavor"], one["sandboxes"], one["seconds"]) for one in raw.get("sandboxes", ())
        ),
        retried=tuple(
            HeadTry(_failure(one["failure"]), _usage(one["usage"]), one["seconds"])
            for one in raw.get("retried", ())
        ),
        patch_bytes=raw["patch_bytes"],
        started_at=datetime.fromisoformat(raw["started_at"]).timestamp(),
        seconds=raw["seconds"],
        offset=offset,
        size=size,
    )


def _failure(raw: Mapping[str, Any]) -> HeadFailure:
    return HeadFailure(raw["boundary"], raw["type"], raw["message"][:_MAX_MESSAGE])


def _usage(raw: Mapping[str, int]) -> HeadUsage:
    return HeadUsage(raw["prompt_tokens"], raw["completion_tokens"])


def _grade(raw: Mapping[str, Any]) -> HeadGrade:
    return HeadGrade(
        raw["resolved"],
        raw["reason"][:_MAX_MESSAGE],
        raw.get("unchecked", ""),
        tuple(HeadTampering(one["kind"]) for one in raw.get("tampering", ())),
        tuple(HeadSuspicion(one["kind"]) for one in raw.get("suspicious", ())),
    )
