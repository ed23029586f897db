"""The messages between trainer and rollout process: JSON lines over two pipes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from swe_core.api.records import Record
from swe_trainer_trl.overlong import AgentErrors, Overlong

Value = float | tuple[float, float]
"""A metric for TRL: a number, or a rate as numerator and denominator."""
ENGINE_LOST = "engine_lost"
"""Reason, in record and ledger, of a rollout that the death of the server ended. Its attempt runs again."""


class FeedOptions(Record):
    """Options for groups.

    Args:
        group_size: Attempts at one task.
        max_staleness: Number of updates that a policy may be behind.
        min_scored: Attempts with a verdict that a group needs.
        keep_without_spread: Whether groups with equal rewards are trained.
        overlong: What becomes of attempts that were cut short.
        agent_errors: What becomes of attempts whose agent failed.
        give_up_after: Consecutive groups without a verdict, or without a trainable token, after which the
            run ends.
        groups_ahead: Groups that run or wait for the trainer.
        shuffle: Whether each epoch has another order of tasks.
        seed: Seed of these orders.
        eval_attempts: Attempts at each held-out task in an evaluation.
        summaries: Whether the tokens of summaries are trained.
        groups: Number of groups of the whole training; None for no end.
    """

    group_size: int
    max_staleness: int
    min_scored: int
    keep_without_spread: bool
    overlong: Overlong = "grade"
    agent_errors: AgentErrors = "zero"
    give_up_after: int
    groups_ahead: int
    shuffle: bool
    seed: int
    eval_attempts: int = 1
    summaries: bool = True
    groups: int | None = None


class Start(Record):
    """The first message to the rollout process.

    Args:
        settings: Settings of the run. The engine's URL names the servers that have the policy's weights.
        version: Current policy version.
        updates: Version → number of updates of its weights, for all earlier versions.
    """

    kind: Literal["start"] = "start"
    settings: dict[str, Any]
    directory: str
    journal: str
    version: int
    updates: dict[int, int]
    options: FeedOptions


class Version(Record):
    """A new policy version, and the number of updates of its weights."""

    kind: Literal["version"] = "version"
    version: int
    updates: int


class Taken(Record):
    """The trainer has taken all rows of a group, so another may begin."""

    kind: Literal["taken"] = "taken"
    group: int


class Evaluate(Record):
    """Begin an evaluation, as `swe_trainer_trl.journal.journal.BegunEvaluation`."""

    kind: Literal["evaluate"] = "evaluate"
    id: int
    step: int
    round: int
    version: int


class Finish(Record):
    """The training is over: cancel its groups, and finish the evaluations."""

    kind: Literal["finish"] = "finish"


class Lost(Record):
    """A server of the policy has died: end its rollouts, and begin none there until it is back."""

    kind: Literal["lost"] = "lost"
    url: str


class Back(Record):
    """A server of the policy runs again, with the policy's weights."""

    kind: Literal["back"] = "back"
    url: str


class Stop(Record):
    """Cancel all rollouts, close every sandbox and end."""

    kind: Literal["stop"] = "stop"


class Beat(Record):
    """A heartbeat: the start of the rollout process advances, or its event loop runs."""

    kind: Literal["beat"] = "beat"


class Closed(Record):
    """A group is closed in the journal, with or without rows for the trainer."""

    kind: Literal["closed"] = "closed"
    group: int


class Evaluated(Record):
    """An evaluation is finished and recorded.

    Args:
        id: Its key in the journal.
        values: Its metrics.
    """

    kind: Literal["evaluated"] = "evaluated"
    id: int
    values: dict[str, Value]


class Metrics(Record):
    """The metrics since the last message."""

    kind: Literal["metrics"] = "metrics"
    values: dict[str, Value]


class Failed(Record):
    """An error that ends the rollout process.

    Args:
        message: One sentence.
        traceback: Traceback of an unexpected exception; "" for an expected error.
    """

    kind: Literal["failed"] = "failed"
    message: str
    traceback: str


Command = Start | Version | Taken | Evaluate | Finish | Lost | Back | Stop
Report = Beat | Closed | Evaluated | Metrics | Failed

_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="kind")])
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="kind")])


def line(message: Command | Report) -> bytes:
    """Encode a message as a line."""
    return message.model_dump_json().encode() + b"\n"


def command(data: bytes) -> Command:
    """Decode a line from the trainer."""
    return _COMMAND.validate_json(data)


def report(data: bytes) -> Report:
    """Decode a line from the rollout process."""
    return _REPORT.validate_json(data)
