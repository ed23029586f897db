"""RolloutHead: a finished rollout without the statuses of its tests, in little memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, TypeAdapter

from swe_core.api.grader import TamperKind
from swe_core.api.records import EVALUATION, Budget, Outcome, Rollout
from swe_core.errors import Boundary

_GROUP = re.compile(r"-g(\d+)-\d+(-\d+)?")
"""What follows the task in a rollout's id in a training: group, attempt, and a number if it ran again."""
_MAX_MESSAGE = 2_000
_PART = re.compile(r"[^/\\\0]{1,255}")


def is_path_part(text: object) -> bool:
    """Return whether a value is a text that can be one part of a path, and of a URL."""
    if not isinstance(text, str) or text in (".", "..") or not _PART.fullmatch(text):
        return False
    try:
        return text.isascii() or len(text.encode()) <= 255
    except UnicodeEncodeError:  # the name of a file that is no UTF-8
        return False


def _checked(text: str) -> str:
    if not is_path_part(text):
        raise ValueError("it is no name")
    return text


Name = Annotated[str, AfterValidator(_checked)]
Message = Annotated[str, AfterValidator(lambda text: text[:_MAX_MESSAGE])]
Seconds = Annotated[float, BeforeValidator(lambda text: datetime.fromisoformat(text).timestamp())]
"""A time in a record, as seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class HeadFailure:
    boundary: Boundary
    type: str
    message: Message


@dataclass(frozen=True, slots=True)
class HeadUsage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class HeadPhases:
    open: float | None = None
    prepare: float | None = None
    agent: float | None = None
    export: float | None = None
    grade: float | None = None


@dataclass(frozen=True, slots=True)
class HeadTampering:
    kind: TamperKind


@dataclass(frozen=True, slots=True)
class HeadSuspicion:
    kind: str


@dataclass(frozen=True, slots=True)
class HeadGrade:
    resolved: bool
    reason: Message
    unchecked: str = ""
    notes: tuple[Message, ...] = ()
    tampering: tuple[HeadTampering, ...] = ()
    suspicious: tuple[HeadSuspicion, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadSandbox:
    flavor: str | None
    sandboxes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HeadTry:
    failure: HeadFailure
    usage: HeadUsage
    seconds: float


@dataclass(frozen=True, slots=True)
class HeadLedger:
    sampled: int
    trainable: int
    dropped: Mapping[str, int]
    chains: int
    forks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHead:
    """What lists of rollouts show, and what the facts of a run need. The fields are those of `Rollout`."""

    id: Name
    task_id: Name
    attempt: int
    agent: str
    sandbox: str
    engine: str
    model: str
    outcome: Outcome
    reward: float | None
    unshaped_reward: float | None
    evaluation: int | None = None
    cancelled_as: str | None = None
    ended_by: Budget | None = None
    failure: HeadFailure | None = None
    agent_failure: Message | None = None
    grade: HeadGrade | None = None
    turns: int
    usage: HeadUsage
    ledger: HeadLedger | None = None
    phases: HeadPhases
    sandboxes: tuple[HeadSandbox, ...] = ()
    retried: tuple[HeadTry, ...] = ()
    patch_bytes: int
    notes: tuple[Message, ...] = ()
    started_at: Seconds
    seconds: float

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


Finished = Rollout | RolloutHead
HEAD = TypeAdapter(RolloutHead)
