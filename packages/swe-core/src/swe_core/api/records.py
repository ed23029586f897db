"""Records on disk: Turn, Failure, Rollout. docs/internals/run-directory.md documents the format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from swe_core.api.agent import DialectName
from swe_core.api.engine import ForkCause, Rendered, Usage
from swe_core.api.grader import Grade
from swe_core.api.request_diff import RequestDiff
from swe_core.errors import Boundary, UsageError

FORMAT_VERSION = 7
"""The format of a run directory, and the only one that this version reads."""
UNDELIVERED = "undelivered"
"""Reason for dropping the ids of a reply that never reached the agent."""
FOREIGN = "foreign"
"""Reason for dropping the ids of a call that is not the agent's own."""
SUMMARY = "summary"
"""Reason for dropping the ids of a summary at a compaction, if summaries are not trained."""
EVALUATION = "evaluation"
"""Reason for dropping the ids of a rollout that evaluates the policy of a training."""
NODE_LOST = "NodeLost"
"""`Failure.type` of a try that was lost with its node."""
Budget = Literal["turns", "completion_tokens", "context", "wall"]
Outcome = Literal["resolved", "unresolved", "error", "cancelled"]
Purpose = Literal["agent", "grade"]


class Record(BaseModel):
    """Base of the models on disk. It is immutable, and unknown keys are errors.

    Models are built at their first use, and a factory makes defaults that are models: to build its first
    model, pydantic reads the metadata of every installed distribution.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Failure(Record):
    """Why a rollout has no verdict: the boundary that failed, and one sentence."""

    boundary: Boundary
    type: str = Field(description="the exception's class name")
    message: str


class TurnTokens(Record):
    """The exact tokens of one call.

    The prompt consists of all ids of turn `base` (prompt and completion) and then of `prompt`, so that a
    file of turns grows linearly with the conversation.
    """

    base: int | None = Field(description="index of the turn whose ids the prompt begins with")
    prompt: list[int]
    completion: list[int]
    logprobs: list[float | None] = Field(description="of each sampled id; null where the server gave none")
    versions: list[tuple[int, int]] = Field(description="policy version and number of ids that it sampled")
    rendered: Rendered
    cause: ForkCause | None = Field(description="why the turn extends no chain; null if it extends one")
    dropped: str | None = Field(default=None, description="why its ids are not trained; null if they are")


class Ledger(Record):
    """The account of a rollout's sampled tokens: `sampled == trainable + sum(dropped)`.

    `swe_core.tokens.ledger` makes and checks it.
    """

    sampled: int = Field(ge=0)
    trainable: int = Field(
        ge=0, description="in the rows of a rollout with a verdict, so that a step may train them"
    )
    dropped: dict[str, int] = Field(default_factory=dict, description="reason → tokens")
    summaries: int = Field(default=0, ge=0, description="of `trainable`, those of summaries at a compaction")
    chains: int = Field(default=0, ge=0)
    forks: dict[ForkCause, int] = Field(default_factory=dict, description="cause → chains that began by it")
    rendered: dict[Rendered, int] = Field(default_factory=dict, description="way of rendering → turns")


class Turn(Record):
    """One LLM call.

    `messages` holds only what this request added. The first `kept` messages are those of the turn `after`,
    so that a file of turns grows linearly with its conversations.
    """

    index: int = Field(ge=0)
    started_at: datetime
    seconds: float = Field(ge=0)
    after: int | None = Field(
        default=None, description="index of the turn whose request this one extends; null: the turn before"
    )
    kept: int = Field(ge=0, description="number of messages that repeat the request of `after`")
    messages: list[dict[str, Any]]
    params: dict[str, Any] = Field(
        description="the rest of the request body; `tools` only if they differ from those of `after`"
    )
    reply: dict[str, Any] | None = Field(description="the assistant message; None when the call failed")
    finish_reason: str | None = None
    usage: Usage = Field(default_factory=Usage)
    error: str | None = None
    tokens: TurnTokens | None = None
    dialect: DialectName = Field(default="chat", description="wire format of the agent's request")
    auxiliary: str | None = Field(
        default=None,
        description="what the call is for, if not the policy's work, such as 'title'",
    )
    summary: bool = Field(default=False, description="whether it asks for the summary of a compaction")

    @classmethod
    def from_request(cls, diff: RequestDiff, index: int, body: Mapping[str, Any], **fields: Any) -> Turn:
        """Return the turn of a request, with only what the request adds to an earlier one.

        Args:
            diff: The rollout's earlier requests.
            body: The request body, in chat-completions form.
            fields: Fields that do not follow from the request.
        """
        return cls(index=index, **diff.added(index, body)._asdict(), **fields)


def requests_of(turns: Iterable[Turn]) -> Iterator[dict[str, Any]]:
    """Yield the request body of each turn.

    A `tools` that was null is absent.

    Args:
        turns: All turns of a rollout, in order.

    Raises:
        UsageError: A turn extends one that is not among the turns before it.
    """
    turns = list(turns)
    before = [None, *(turn.index for turn in turns)]
    earlier = [last if turn.after is None else turn.after for last, turn in zip(before, turns, strict=False)]
    needed = {index: place for place, index in enumerate(earlier)}  # until its last reader
    known: dict[int | None, tuple[list[dict[str, Any]], object]] = {None: ([], None)}
    for place, (turn, index) in enumerate(zip(turns, earlier, strict=True)):
        if index not in known:
            raise UsageError(
                f"turn {turn.index} continues turn {index}, which is not among the turns before it: "
                "the file has lost lines"
            )
        messages, tools = known[index] if needed[index] > place else known.pop(index)
        messages = [*messages[: turn.kept], *turn.messages]
        tools = turn.params.get("tools", tools)
        if turn.index in needed:
            known[turn.index] = messages, tools
        body = {**turn.params, "messages": messages, "tools": tools}
        if tools is None:
            del body["tools"]
        yield body


class Undelivered(Record):
    """The last line of a rollout's turns, written after its last call; missing if every reply arrived."""

    undelivered: tuple[int, ...] = Field(
        description="indices of the turns whose complete reply reached no client and that no turn continues"
    )


class Foreign(Record):
    """A line after a rollout's turns, before that of `Undelivered`; missing if all calls are the agent's."""

    foreign: tuple[int, ...] = Field(description="indices of the turns that are not the agent's own")


class Phases(Record):
    """Wall time of each phase, seconds; None if the rollout did not reach it."""

    open: float | None = None
    prepare: float | None = None
    agent: float | None = None
    export: float | None = None
    grade: float | None = None


class SandboxTime(Record):
    """Time for which a rollout held sandboxes of one flavor open, over all of its tries."""

    purpose: Purpose
    flavor: str | None = Field(description="`Sandbox.flavor`")
    sandboxes: int = Field(ge=1)
    seconds: float = Field(ge=0)


class Retried(Record):
    """A try that failed because of its sandbox, or was lost with its node, and was repeated.

    If the patch was already exported, only the grading was repeated.
    """

    failure: Failure
    folder: str | None = Field(
        description="subfolder with the files of this try; null for a grading, and if a node lost them"
    )
    turns: int = Field(default=0, ge=0, description="LLM calls that were lost")
    usage: Usage = Field(default_factory=Usage, description="tokens of these calls")
    seconds: float = Field(ge=0, description="wall time that was lost")


class Rollout(Record):
    """One finished rollout: a line of `rollouts.jsonl`.

    After a repeated try, `ledger`, `sandboxes` and `seconds` cover all tries, and the other fields the last.
    """

    id: str
    task_id: str
    attempt: int = Field(ge=0)
    agent: str
    sandbox: str
    engine: str
    model: str
    node: str | None = Field(
        default=None,
        description="the node where it ran; None in the process of the command, or if all were lost",
    )
    outcome: Outcome
    cancelled_as: str | None = Field(
        default=None, description="why a worker cancelled it, such as 'stale'; null if none did"
    )
    evaluation: int | None = Field(
        default=None,
        ge=0,
        description="of an evaluation while training: optimizer steps of the policy; null for all others",
    )
    reward: float | None = Field(
        allow_inf_nan=False, description="the grader's, shaped by the plugins; None without a verdict"
    )
    unshaped_reward: float | None = Field(
        default_factory=lambda known: known.get("reward"),
        description="`Grade.reward`, before any plugin shaped it; None without a verdict",
    )
    failure: Failure | None = None
    grade: Grade | None = None
    turns: int = Field(default=0, ge=0)
    usage: Usage = Field(default_factory=Usage)
    ledger: Ledger | None = Field(default=None, description="None if the engine does not own the tokens")
    ended_by: Budget | None = Field(default=None, description="the budget that ended the agent's run")
    finish_reason: str | None = Field(
        default=None,
        description="why the last reply of the policy's work ended, such as 'length': cut at a limit",
    )
    patch_bytes: int = Field(default=0, ge=0)
    notes: tuple[str, ...] = Field(default=(), description="what a user should know of the patch, sentences")
    agent_exit_code: int | None = None
    agent_failure: str | None = Field(
        default=None,
        description="how the agent failed after its first answered call, one sentence; the patch is graded "
        "all the same; null if it did not",
    )
    phases: Phases = Field(default_factory=Phases)
    sandboxes: tuple[SandboxTime, ...] = ()
    retried: tuple[Retried, ...] = Field(default=(), description="tries that a sandbox failed")
    started_at: datetime
    seconds: float = Field(ge=0, description="wall time of the whole rollout")

    @property
    def not_trained(self) -> str | None:
        """Return why no token is trained: it has no verdict, or is an evaluation; None if some may be."""
        if self.reward is None:
            return self.cancelled_as or self.outcome
        return None if self.evaluation is None else EVALUATION
