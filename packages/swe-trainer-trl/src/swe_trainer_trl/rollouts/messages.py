"""What the trainer's process and the rollouts' tell each other: JSON lines over two pipes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from swe_core.api.records import Record

Value = float | tuple[float, float]
"""A metric as TRL takes it: a number, or a rate as numerator and denominator."""
ENGINE_LOST = "engine_lost"
"""Stands in the record and in the ledger of a rollout that was ended because the policy's server had died:
the attempt is made again."""


class FeedOptions(Record):
    """How groups are made.

    Args:
        group_size: Attempts at one task.
        max_staleness: How many updates a policy may be behind.
        min_scored: Attempts with a verdict that a group needs.
        keep_without_spread: Whether groups whose rewards are all equal are trained.
        give_up_after: Groups in a row without any verdict, or any token to train, after which the run ends.
        groups_ahead: Groups that run or wait for the trainer.
        shuffle: Whether each epoch has another order of tasks.
        seed: Of those orders.
    """

    group_size: int
    max_staleness: int
    min_scored: int
    keep_without_spread: bool
    give_up_after: int
    groups_ahead: int
    shuffle: bool
    seed: int


class Start(Record):
    """The first line to the rollouts' process: all that it needs.

    Args:
        version: Of the policy.
        updates: Version → how many updates its weights had, of all versions so far.
    """

    kind: Literal["start"] = "start"
    settings: dict[str, Any]
    directory: str
    journal: str
    version: int
    updates: dict[int, int]
    options: FeedOptions


class Version(Record):
    """The policy has this version from now on, whose weights have had so many updates."""

    kind: Literal["version"] = "version"
    version: int
    updates: int


class Taken(Record):
    """The trainer has taken all rows of a group: there is room for another."""

    kind: Literal["taken"] = "taken"
    group: int


class Lost(Record):
    """The policy's server has died: end what needs it, and begin nothing until it is back."""

    kind: Literal["lost"] = "lost"


class Back(Record):
    """The policy's server is there again, with its weights."""

    kind: Literal["back"] = "back"


class Stop(Record):
    """Cancel what runs, close every sandbox and end."""

    kind: Literal["stop"] = "stop"


class Beat(Record):
    """The rollouts' process gets on: it has come further in its start, or its event loop turns."""

    kind: Literal["beat"] = "beat"


class Closed(Record):
    """A group is over, and in the journal: with rows for the trainer, or without."""

    kind: Literal["closed"] = "closed"
    group: int


class Metrics(Record):
    """What was measured since the last ones."""

    kind: Literal["metrics"] = "metrics"
    values: dict[str, Value]


class Failed(Record):
    """The rollouts cannot go on; the process ends.

    Args:
        message: One sentence.
        traceback: Of what should not have happened; "" where the sentence says it all.
    """

    kind: Literal["failed"] = "failed"
    message: str
    traceback: str


Command = Start | Version | Taken | Lost | Back | Stop
Report = Beat | Closed | Metrics | Failed

_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="kind")])
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="kind")])


def line(message: Command | Report) -> bytes:
    """One message as a line."""
    return message.model_dump_json().encode() + b"\n"


def command(data: bytes) -> Command:
    """The message of a line from the trainer's process."""
    return _COMMAND.validate_json(data)


def report(data: bytes) -> Report:
    """The message of a line from the rollouts' process."""
    return _REPORT.validate_json(data)
