"""Freshness: how old the policy of each running rollout is, and the end of those that are too old."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.worker import RolloutRunner
from swe_trainer_trl.rollouts.messages import ENGINE_LOST
from swe_trainer_trl.rollouts.metrics import Tally

STALE = "stale"
"""Stands in the record and in the ledger of a rollout that was cancelled because its policy is too old."""


@dataclass(slots=True, eq=False)
class _Running:
    """A rollout that runs: when it began, its phase, the updates of the oldest policy that sampled an id to
    train, and after how many seconds it was cancelled."""

    began: float
    phase: Phase = "open"
    oldest: int | None = None
    cancelled: float | None = None


class Freshness:
    """Watches a run (`swe_core.api.rollout_request.Observer`).

    Attributes:
        version: Of the policy now.

    Args:
        updates: Version → how many updates its weights had, of all versions so far.
        max_staleness: How many updates a rollout's oldest id may be behind.
    """

    def __init__(
        self,
        runner: RolloutRunner,
        version: int,
        updates: Mapping[int, int],
        max_staleness: int,
        tally: Tally,
    ) -> None:
        self.version = version
        self._updates = dict(updates)
        self._runner = runner
        self._max_staleness = max_staleness
        self._tally = tally
        self._running: dict[str, _Running] = {}

    def __len__(self) -> int:
        """Rollouts that run."""
        return len(self._running)

    @property
    def update(self) -> int:
        """How many updates the policy's weights have had now."""
        return self.update_of(self.version)

    def update_of(self, version: int) -> int:
        """How many updates the weights of a version had; 0 before the first version."""
        return self._updates.get(version, 0)

    def started(self, request: RolloutRequest) -> None:
        """It runs."""
        self._running[request.id] = _Running(time.monotonic())

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """It begins, maybe again because its sandbox failed: what it sampled before is not trained."""
        running = self._running[rollout_id]
        running.phase = phase
        if phase == "open":
            running.oldest = None

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """It has ids now, or more of them; they may be too old already, where the call took long."""
        if turn.tokens is None or turn.tokens.dropped is not None:
            return
        running = self._running[rollout_id]
        updates = [self.update_of(version) for version, _ in turn.tokens.versions]
        running.oldest = min(updates if running.oldest is None else [*updates, running.oldest], default=None)
        self._cancel_stale(rollout_id, running)

    def finished(self, rollout: Rollout) -> None:
        """It is over. Only now it is known whether it was cancelled, or had its outcome by then."""
        running = self._running.pop(rollout.id)
        if running.cancelled is not None and rollout.cancelled_as == STALE:
            self._tally.cancelled(running.cancelled)

    def advance(self, version: int, updates: int) -> None:
        """The policy is `version` from now on, whose weights have had so many updates. Rollouts that this
        leaves too far behind are cancelled, and their sandboxes freed."""
        self.version = version
        self._updates[version] = updates
        for rollout_id, running in list(self._running.items()):
            self._cancel_stale(rollout_id, running)

    def server_lost(self) -> None:
        """The policy's server has died: end each rollout whose agent may still ask it."""
        for rollout_id, running in list(self._running.items()):
            if running.phase in ("open", "prepare", "agent"):
                self._runner.cancel(rollout_id, ENGINE_LOST)

    def _cancel_stale(self, rollout_id: str, running: _Running) -> None:
        if running.cancelled is not None or running.oldest is None:
            return
        if self.update - running.oldest > self._max_staleness:
            running.cancelled = time.monotonic() - running.began
            self._runner.cancel(rollout_id, STALE)
