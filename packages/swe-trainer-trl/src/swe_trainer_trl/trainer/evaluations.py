"""Evaluations: decides when the policy is evaluated, and waits for the last evaluation."""

from __future__ import annotations

from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.trainer.worker import TRLRolloutWorker


class Evaluations:
    """Begins the evaluations of a training.

    The first is that of the first weights. Another one begins with the first weights that are sent at or
    after each multiple of `every` steps. The last weights are evaluated in any case.
    Evaluations before a resume count, unless their weights are lost.

    Args:
        every: Optimizer steps between two evaluations.
    """

    def __init__(self, worker: TRLRolloutWorker, journal: Journal, every: int) -> None:
        self._worker = worker
        self._journal = journal
        self._every = every
        self._last = journal.last_evaluation()

    def weights_sent(self, step: int) -> None:
        """Begin an evaluation of the weights of `step`, which the server has now, if one is due."""
        if self._last is None or step // self._every > self._last // self._every:
            self._begin(step)

    @property
    def unreported(self) -> int:
        """Return the number of finished evaluations that no log has."""
        return len(self._worker.evaluations)

    def report(self) -> None:
        """Add the oldest unreported evaluation to the next log. TRL would average two of one log."""
        if self._worker.evaluations:
            self._worker.metrics_queue.put(self._worker.evaluations.popleft())

    def are_complete(self, step: int) -> bool:
        """Return whether the weights of `step` are evaluated, and no evaluation is open."""
        return self._last == step and not self._journal.open_evaluations()

    def finish(self, step: int, stale_after_s: float) -> None:
        """Evaluate the last weights, those of `step`, and wait until every evaluation is finished.

        Raises:
            SweError: As in `TRLRolloutWorker.check_health`.
        """
        if self._last != step:
            self._begin(step)
        self._worker.finish_evaluations(stale_after_s)

    def _begin(self, step: int) -> None:
        self._last = step
        self._worker.evaluate(self._journal.begin_evaluation(step, self._worker.version))
