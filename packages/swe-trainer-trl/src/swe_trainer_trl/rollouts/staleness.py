"""StalenessCheck: tracks the age of each running rollout's policy, and cancels stale rollouts."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.worker import RolloutRunner
from swe_trainer_trl.rollouts.messages import ENGINE_LOST
from swe_trainer_trl.rollouts.metrics import RolloutMetrics

STALE = "stale"
"""Reason, in record and ledger, of a rollout that was cancelled because its policy is too old."""


@dataclass(slots=True, eq=False)
class _Running:
    """A running rollout: its start, whether it may become stale, its phase, the updates of the oldest policy
    with a trainable id, and the seconds until its cancellation."""

    began: float
    ages: bool
    phase: Phase = "open"
    oldest: int | None = None
    cancelled: float | None = None


class StalenessCheck:
    """Observes a run (`swe_core.api.rollout_request.Observer`).

    Attributes:
        version: Current policy version.

    Args:
        updates: Version → number of updates of its weights, for all earlier versions.
        max_staleness: Number of updates that a rollout's oldest id may be behind.
    """

    def __init__(
        self,
        runner: RolloutRunner,
        version: int,
        updates: Mapping[int, int],
        max_staleness: int,
        tally: RolloutMetrics,
    ) -> None:
        self.version = version
        self._updates = dict(updates)
        self._runner = runner
        self._max_staleness = max_staleness
        self._tally = tally
        self._running: dict[str, _Running] = {}

    def __len__(self) -> int:
        """Return the number of running rollouts."""
        return len(self._running)

    @property
    def update(self) -> int:
        """Return the number of updates of the current weights."""
        return self.update_of(self.version)

    def update_of(self, version: int) -> int:
        """Return the number of updates of a version's weights; 0 before the first version."""
        return self._updates.get(version, 0)

    def started(self, request: RolloutRequest) -> None:
        """Track a new rollout."""
        self._running[request.id] = _Running(time.monotonic(), ages=request.evaluation is None)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Reset a rollout that begins, perhaps again after a sandbox failure: earlier ids are not trained."""
        running = self._running[rollout_id]
        running.phase = phase
        if phase == "open":
            running.oldest = None

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Check the new ids, which may be stale already after a long call."""
        if turn.tokens is None or turn.tokens.dropped is not None:
            return
        running = self._running[rollout_id]
        updates = [self.update_of(version) for version, _ in turn.tokens.versions]
        running.oldest = min(updates if running.oldest is None else [*updates, running.oldest], default=None)
        self._cancel_stale(rollout_id, running)

    def finished(self, rollout: Rollout) -> None:
        """Forget a rollout. Only now it is known whether it was cancelled or ended before."""
        running = self._running.pop(rollout.id)
        if running.cancelled is not None and rollout.cancelled_as == STALE:
            self._tally.cancelled(running.cancelled)

    def advance(self, version: int, updates: int) -> None:
        """Set the policy version and the updates of its weights, and cancel rollouts that are now stale."""
        self.version = version
        self._updates[version] = updates
        for rollout_id, running in list(self._running.items()):
            self._cancel_stale(rollout_id, running)

    def server_lost(self, rollouts: Collection[str] | None) -> None:
        """End each rollout whose agent may still call the dead server.

        Args:
            rollouts: The rollouts on that server; None for all.
        """
        for rollout_id, running in list(self._running.items()):
            if running.phase in ("open", "prepare", "agent") and (rollouts is None or rollout_id in rollouts):
                self._runner.cancel(rollout_id, ENGINE_LOST)

    def _cancel_stale(self, rollout_id: str, running: _Running) -> None:
        if not running.ages or running.cancelled is not None or running.oldest is None:
            return
        if self.update - running.oldest > self._max_staleness:
            running.cancelled = time.monotonic() - running.began
            self._runner.cancel(rollout_id, STALE)
