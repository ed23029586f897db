"""Statistics of a run: pass@k with its confidence interval, and the results of each task. Pure arithmetic.

Only rollouts with a verdict count. An error or a cancelled rollout carries no information about the policy:
it is excluded from pass@k and reported separately.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from swe_core.api.records import Rollout

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The attempts at one task.

    Args:
        verdicts: Attempts with a verdict, `resolved` of them resolved; the rest are `errors` and `cancelled`.
        seconds: Mean wall time of all its attempts.
    """

    task_id: str
    verdicts: int
    resolved: int
    errors: int
    cancelled: int
    seconds: float

    @property
    def attempts(self) -> int:
        """Return the number of all attempts."""
        return self.verdicts + self.errors + self.cancelled


@dataclass(frozen=True, slots=True)
class PassAtK:
    """An estimate of pass@k, the chance that at least one of k attempts at a task resolves it.

    Args:
        value: The mean over `tasks`, those with at least k verdicts.
        low, high: Its interval, of `CONFIDENCE`.
    """

    k: int
    value: float
    low: float
    high: float
    tasks: int


def task_results(rollouts: Iterable[Rollout]) -> tuple[TaskResult, ...]:
    """Return the results of each task, by its id."""
    by_task: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        by_task.setdefault(rollout.task_id, []).append(rollout)
    return tuple(_task_result(name, by_task[name]) for name in sorted(by_task))


def pass_at_k(verdicts: int, resolved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one task, 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", https://arxiv.org/abs/2107.03374.

    Args:
        verdicts: n, attempts with a verdict.
        resolved: c, how many of them are resolved.

    Raises:
        ValueError: It is not 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= verdicts and 0 <= resolved <= verdicts):
        raise ValueError(f"pass@{k} of {resolved} resolved in {verdicts}: expected 1 <= k <= n, 0 <= c <= n")
    return 1 - math.comb(verdicts - resolved, k) / math.comb(verdicts, k)


def estimates(tasks: Sequence[TaskResult]) -> tuple[PassAtK, ...]:
    """Return pass@k for each power of two up to the most verdicts of a task, and for that number."""
    most = max((task.verdicts for task in tasks), default=0)
    ks = sorted({most} | {1 << power for power in range(most.bit_length())} if most else ())
    return tuple(_estimate([task for task in tasks if task.verdicts >= k], k) for k in ks)


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share, at `CONFIDENCE`.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22:209-212.

    Args:
        trials: How many independent trials the share is of, more than 0; need not be whole.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    weight = z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    reach = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    # Rounding may leave a share of 0 or 1 outside by its last digit.
    return max(0.0, min(middle - reach, share)), min(1.0, max(middle + reach, share))


def effective_trials(values: Sequence[float], groups: int) -> float:
    """Return the effective sample size: independent trials with the variance of the mean of `values`.

    p (1 - p) / Var(mean), the sample size over the design effect of a cluster sample (Kish 1965, "Survey
    Sampling", 8.2). A task's attempts resemble each other, so many attempts at few tasks are worth less than
    as many tasks. With one attempt a task it is the number of tasks.

    Args:
        values: Each from 0 to 1.
        groups: The most that it can be: attempts in groups of k that share none. It is reached where tasks
            are all alike.
    """
    mean = fmean(values)
    spread = fmean([(value - mean) ** 2 for value in values])
    if mean in (0.0, 1.0):  # no spread to estimate: as if all attempts of a task were equal
        return len(values)
    if spread == 0:
        return groups
    return min(max(mean * (1 - mean) * len(values) / spread, len(values)), groups)


def _estimate(tasks: Sequence[TaskResult], k: int) -> PassAtK:
    values = [pass_at_k(task.verdicts, task.resolved, k) for task in tasks]
    trials = effective_trials(values, sum(task.verdicts // k for task in tasks))
    value = fmean(values)
    return PassAtK(k, value, *wilson(value, trials), len(tasks))


def _task_result(name: str, rollouts: Sequence[Rollout]) -> TaskResult:
    outcomes = Counter(rollout.outcome for rollout in rollouts)
    return TaskResult(
        task_id=name,
        verdicts=outcomes["resolved"] + outcomes["unresolved"],
        resolved=outcomes["resolved"],
        errors=outcomes["error"],
        cancelled=outcomes["cancelled"],
        seconds=fmean([rollout.seconds for rollout in rollouts]),
    )
