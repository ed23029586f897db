"""What a driver and a node send each other: JSON of the standard library, which has infinity and any text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from swe_core.api.records import Record, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.errors import SweError

M = TypeVar("M", bound=Record)


class SetVersion(Record):
    """`version`: the policy version from now on."""

    number: int = Field(description="later ones are greater; an earlier one does not count")
    version: int


class Begin(Record):
    """`begin`: what a node needs for a run. A driver sends it again when it has lost the node for a while."""

    name: str
    settings: dict[str, Any]
    versions: dict[str, str] = Field(description="of the driver: Python and packages")
    directory: str | None = Field(description="where relative paths of the settings start")
    spool: str
    clock: float = Field(description="seconds since 1970, of the driver")
    epoch: int = Field(description="number of this `begin`; a start of an earlier one does not count")
    version: SetVersion | None = Field(description="null where nothing trains")
    without: tuple[str, ...] = Field(description="servers that get no rollouts")


class Joined(Record):
    """The answer to `begin`."""

    incarnation: str = Field(description="another one after each start of the node")
    pid: int
    host: str
    notes: tuple[str, ...]
    running: tuple[str, ...] = Field(description="ids of its rollouts")
    offered: tuple[str, ...] = Field(description="ids of finished rollouts without an acknowledgement")


class Start(Record):
    """`start`: run this rollout."""

    epoch: int
    request: RolloutRequest


class End(Record):
    """`cancel`: end a rollout."""

    rollout: str
    why: str | None = Field(description="the reason in its record; null as if the run was interrupted")


class Server(Record):
    """`take_out` or `put_in`: an engine's server."""

    url: str


class Poll(Record):
    """`poll`: the events after this number, once there is one or some seconds have passed."""

    after: int


class Read(Record):
    """`read`: a part of the file of a finished rollout."""

    rollout: str
    offset: int


class Acknowledge(Record):
    """`acknowledge`: the driver has these rollouts on disk."""

    rollouts: tuple[str, ...]


class _Event(Record):
    number: int


class PhaseEvent(_Event):
    """A rollout has entered a phase."""

    kind: Literal["phase"] = "phase"
    rollout: str
    phase: Phase


class TurnEvent(_Event):
    """An LLM call was answered and recorded."""

    kind: Literal["turn"] = "turn"
    rollout: str
    turn: Turn = Field(description="without messages, parameters, reply and ids")


class FinishedEvent(_Event):
    """A rollout has ended, and its file is on the node's disk."""

    kind: Literal["finished"] = "finished"
    rollout: str


class FailedEvent(_Event):
    """The node cannot write what a rollout produces, such as on a full disk."""

    kind: Literal["failed"] = "failed"
    rollout: str
    why: str


class UnfitEvent(_Event):
    """The node's engine can no longer serve the run."""

    kind: Literal["unfit"] = "unfit"
    why: str


class LogEvent(_Event):
    """A line of the node's log."""

    kind: Literal["log"] = "log"
    level: int
    text: str


Event = Annotated[
    PhaseEvent | TurnEvent | FinishedEvent | FailedEvent | UnfitEvent | LogEvent, Field(discriminator="kind")
]
_events = TypeAdapter[list[Event]](list[Event])


def light(turn: Turn) -> Turn:
    """Return a turn as a driver hears of it: without messages, parameters, reply and ids."""
    tokens = turn.tokens and turn.tokens.model_copy(update={"prompt": [], "completion": [], "logprobs": []})
    return turn.model_copy(
        update={"messages": [], "params": {}, "reply": None, "kept": 0, "after": None, "tokens": tokens}
    )


def to_bytes(message: Record) -> bytes:
    """Return a message as bytes."""
    return json.dumps(message.model_dump(mode="json")).encode()


def from_bytes(kind: type[M], data: bytes) -> M:
    """Return the message that `data` is.

    Raises:
        SweError: It is none of this kind.
    """
    try:
        return kind.model_validate(json.loads(data))
    except ValueError as error:  # of both libraries
        raise SweError(f"what came is no {kind.__name__}: {error}") from None


def events_to_bytes(events: Sequence[Event]) -> bytes:
    """Return events as bytes."""
    return json.dumps([event.model_dump(mode="json") for event in events]).encode()


def events_of(data: bytes) -> list[Event]:
    """Return the events that `data` has.

    Raises:
        SweError: It has none.
    """
    try:
        return _events.validate_python(json.loads(data))
    except ValueError as error:  # of both libraries
        raise SweError(f"what came are no events: {error}") from None
