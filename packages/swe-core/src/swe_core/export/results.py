"""Results: outcomes that are counted while rollouts pass by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from swe_core.api.records import Outcome, Rollout
from swe_core.report.statistics import PassAtK, TaskResult, estimates


class Results:
    """Outcomes of rollouts by task. Those of evaluations while training do not count."""

    def __init__(self) -> None:
        self._tasks: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
        self._all = Counter[Outcome]()

    def add(self, record: Rollout) -> None:
        """Count one rollout."""
        counts = int(record.evaluation is None)
        self._tasks[record.task_id][record.outcome] += counts
        self._all[record.outcome] += counts

    @property
    def verdicts(self) -> int:
        """Return the number of rollouts with a verdict."""
        return self._all["resolved"] + self._all["unresolved"]

    @property
    def errors(self) -> int:
        """Return the number of rollouts that ended in an error."""
        return self._all["error"]

    @property
    def rate(self) -> float | None:
        """Return the share of the verdicts that are resolved; None without any."""
        return self._all["resolved"] / self.verdicts if self.verdicts else None

    def passes(self) -> Sequence[PassAtK]:
        """Return pass@k for some k; none without a verdict."""
        return estimates([_task(name, found) for name, found in self._tasks.items()])


def _task(name: str, outcomes: Counter[Outcome]) -> TaskResult:
    return TaskResult(
        name,
        verdicts=outcomes["resolved"] + outcomes["unresolved"],
        resolved=outcomes["resolved"],
        errors=outcomes["error"],
        cancelled=outcomes["cancelled"],
        seconds=0.0,
    )
