"""Health: whether further rollouts can get a verdict."""

from __future__ import annotations

import threading

from swe_core.errors import SweError


class TrainingStopped(SweError, ValueError):
    """No further rollout can get a verdict.

    It is a ValueError, because TRL's worker ends with one that comes from a trace. After all else it would go
    on for ever without a row to train.
    """


class Health:
    """Counts rollouts without a verdict; too many in a row end the training. Any thread may use it.

    Args:
        give_up_after: How many are too many.

    Attributes:
        over: Why no further rollout can get a verdict, one sentence; None while they can.
    """

    def __init__(self, give_up_after: int) -> None:
        self.over: str | None = None
        self._limit = give_up_after
        self._in_a_row = 0
        self._lock = threading.Lock()

    def count(self, why: str | None) -> None:
        """Count one rollout.

        Args:
            why: Why it has no verdict; None if it has one.
        """
        with self._lock:
            self._in_a_row = 0 if why is None else self._in_a_row + 1
            if self._in_a_row >= self._limit:
                self.over = (
                    self.over or f"{self._in_a_row} rollouts in a row have no verdict; the last: {why}"
                )

    def stop(self, why: str) -> None:
        """Note that no further rollout can get a verdict."""
        with self._lock:
            self.over = self.over or why
