"""RunLine: what a list of runs says of one, without keeping its rollouts in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from swe_core.report.facts import without_evaluations
from swe_core.report.finished import RolloutHead
from swe_core.report.statistics import PassAtK, estimates, task_results


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of a list.

    Args:
        lasting: Finished rollouts that a resumed run does not run again.
        first: pass@1; None without a verdict.
    """

    agents: tuple[str, ...]
    models: tuple[str, ...]
    tasks: int
    finished: int
    lasting: int
    outcomes: Counter[str]
    first: PassAtK | None

    @classmethod
    def of(cls, heads: Sequence[RolloutHead]) -> RunLine:
        """Return the line of a run with these finished rollouts, of which evaluations do not count."""
        counting = without_evaluations(heads)
        passes = estimates(task_results(counting))
        return cls(
            agents=tuple(sorted({head.agent for head in heads})),
            models=tuple(sorted({head.model for head in heads if head.model})),
            tasks=len({head.task_id for head in counting}),
            finished=len(counting),
            lasting=sum(not head.interrupted for head in heads),
            outcomes=Counter(head.outcome for head in counting),
            first=passes[0] if passes else None,
        )
