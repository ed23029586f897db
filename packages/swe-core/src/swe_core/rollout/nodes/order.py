"""Order: a submitted rollout, until it is settled."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio

from swe_core.api.engine import Usage
from swe_core.api.records import NODE_LOST, Failure, Ledger, Outcome, Retried, Rollout, Turn
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError
from swe_core.tokens.ledger import LOST_NODE, add_ledgers

MAX_LOST = 3
"""Number of nodes that one rollout may lose. It may be what ends them."""


@dataclass(frozen=True, slots=True)
class LostTry:
    """A try that was lost with its node.

    Args:
        turns: What the driver heard of its calls.
        began: When it began, of this process's monotonic clock.
    """

    node: str
    retried: Retried
    turns: tuple[Turn, ...]
    began: float


@dataclass(slots=True, eq=False)
class Order:
    """A submitted rollout.

    Attributes:
        node: Name of the node that has it; None while it waits for one.
        begun: Whether the node is known to have begun it.
        ending: Whether it is to end early.
        why: The reason for that in its record.
        receiving: Whether its file is under way.
        lost: Tries that were lost, each with its node.
        settled: Set once there is a `result` or a `failure`.
    """

    request: RolloutRequest
    observer: Observer
    node: str | None = None
    begun: bool = False
    ending: bool = False
    why: str | None = None
    receiving: bool = False
    lost: list[LostTry] = field(default_factory=list)
    settled: anyio.Event = field(default_factory=anyio.Event)
    result: FinishedRollout | None = None
    failure: Exception | None = None
    _began: datetime = field(default_factory=lambda: datetime.now(UTC))
    _tried: float = field(default_factory=time.monotonic)
    _turns: list[Turn] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Return the rollout's id."""
        return self.request.id

    def assign(self, node: str) -> None:
        """Begin a try on a node."""
        self.node, self.begun, self._tried = node, False, time.monotonic()
        self._turns.clear()

    def take_back(self) -> None:
        """End a try that the node has not begun."""
        self.node = None

    def turn(self, turn: Turn) -> None:
        """Count a turn of this try, whose ids are lost with its node."""
        self.begun = True
        self._turns.append(turn)

    def lose(self, why: str) -> None:
        """Book the current try as lost with its node."""
        usage = Usage(
            prompt_tokens=sum(turn.usage.prompt_tokens for turn in self._turns),
            completion_tokens=sum(turn.usage.completion_tokens for turn in self._turns),
        )
        retried = Retried(
            failure=Failure(boundary="sandbox", type=NODE_LOST, message=why),
            folder=None,
            turns=len(self._turns),
            usage=usage,
            seconds=round(time.monotonic() - self._tried, 4),
        )
        self.lost.append(LostTry(self.node or "", retried, tuple(self._turns), self._tried))
        self.node = None
        self._turns.clear()

    def adopt(self, node: str) -> None:
        """Take back the last try of a node: it was not lost."""
        place = max(number for number, lost in enumerate(self.lost) if lost.node == node)
        found = self.lost.pop(place)
        self.node, self.begun, self._turns, self._tried = node, True, list(found.turns), found.began

    def has_lost(self, node: str) -> bool:
        """Return whether a try on this node counts as lost."""
        return any(lost.node == node for lost in self.lost)

    def settle(self, result: FinishedRollout) -> None:
        """End the order with a rollout, whose record gets the lost tries."""
        if self.lost:
            result = FinishedRollout(self._with_lost(result.rollout), result.chains)
        self.result = result
        self.settled.set()

    def settle_here(self) -> None:
        """End the order without a node: it was to end, or has lost too many nodes."""
        if self.ending:
            self.settle(FinishedRollout(self._record("cancelled", None)))
        else:
            self.settle(FinishedRollout(self._record("error", self.lost[-1].retried.failure)))

    def fail(self, failure: SweError | OSError) -> None:
        """End the order without a rollout: none can run any more, or this one cannot be written."""
        self.failure = failure
        self.settled.set()

    def _with_lost(self, rollout: Rollout) -> Rollout:
        ledger, lost = rollout.ledger, sum(_sampled(turn) for one in self.lost for turn in one.turns)
        if lost:
            dropped = Ledger(sampled=lost, trainable=0, dropped={LOST_NODE: lost})
            ledger = add_ledgers([dropped] if ledger is None else [dropped, ledger])
        seconds = rollout.seconds + sum(one.retried.seconds for one in self.lost)
        retried = (*(one.retried for one in self.lost), *rollout.retried)
        return rollout.model_copy(update={"ledger": ledger, "retried": retried, "seconds": round(seconds, 4)})

    def _record(self, outcome: Outcome, failure: Failure | None) -> Rollout:
        return Rollout(
            **self.request.recorded,
            outcome=outcome,
            cancelled_as=self.why if outcome == "cancelled" else None,
            reward=None,
            failure=failure,
            started_at=self._began,
            seconds=0,
        )


def _sampled(turn: Turn) -> int:
    """Return the number of ids that a turn sampled."""
    return sum(count for _, count in turn.tokens.versions) if turn.tokens is not None else 0
