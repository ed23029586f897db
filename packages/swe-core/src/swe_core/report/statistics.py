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

from swe_core.report.finished import Finished
from swe_core.system.natural_order import natural_key

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
        value: The mean over `tasks`, those with at least k verdicts; together they have `verdicts`.
        low, high: Its interval, of `CONFIDENCE`.
    """

    k: int
    value: float
    low: float
    high: float
    tasks: int
    verdicts: int


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of pass@1 between two runs, over the tasks with a verdict in both.

    Args:
        first, second: pass@1 of each.
        value: `second - first`.
        low, high: Its interval, of `CONFIDENCE`.
        better, worse: Tasks of which the second run resolves a larger, or a smaller, share of the attempts.
    """

    first: float
    second: float
    value: float
    low: float
    high: float
    tasks: int
    better: int
    worse: int


def task_results(rollouts: Iterable[Finished]) -> tuple[TaskResult, ...]:
    """Return the results of each task, in the natural order of the ids."""
    by_task: dict[str, list[Finished]] = {}
    for rollout in rollouts:
        by_task.setdefault(rollout.task_id, []).append(rollout)
    return tuple(_task_result(name, by_task[name]) for name in sorted(by_task, key=natural_key))


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


def paired_difference(pairs: Sequence[tuple[TaskResult, TaskResult]]) -> PairedDifference | None:
    """Return the difference of pass@1 between two runs of the same tasks; None without a pair.

    The interval is made of those of the two rates (`wilson`, with `effective_trials`) and their correlation r
    over the tasks. With a lower end l and an upper end u of each rate p and d = p2 - p1,

        low  = d - sqrt((p2 - l2)^2 - 2 r (p2 - l2)(u1 - p1) + (u1 - p1)^2)
        high = d + sqrt((u2 - p2)^2 - 2 r (u2 - p2)(p1 - l1) + (p1 - l1)^2)

    With one attempt a task this is method 10 of Newcombe 1998, "Improved confidence intervals for the
    difference between binomial proportions based on paired data", Statistics in Medicine 17:2635-2650. Zou
    and Donner 2008, "Construction of confidence limits about effect measures: a general approach", Statistics
    in Medicine 27:1693-1702, have it for other rates. As Newcombe does, 1/(2n) is taken from a positive
    covariance: that few tasks agree does not prove that the runs are equal.

    Args:
        pairs: Results of one task in the first and in the second run, each with a verdict.
    """
    if not pairs:
        return None
    values = [(one.resolved / one.verdicts, two.resolved / two.verdicts) for one, two in pairs]
    first, second = (fmean(rates) for rates in zip(*values, strict=True))
    ends = []
    for side, rate in enumerate((first, second)):
        rates = [value[side] for value in values]
        ends.append(wilson(rate, effective_trials(rates, sum(pair[side].verdicts for pair in pairs))))
    (low1, high1), (low2, high2) = ends
    together = _correlation(values, first, second)
    difference = second - first

    def reach(one: float, two: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * together * one * two + two * two))

    return PairedDifference(
        first,
        second,
        difference,
        max(-1.0, difference - reach(second - low2, high1 - first)),
        min(1.0, difference + reach(high2 - second, first - low1)),
        len(pairs),
        sum(two > one for one, two in values),
        sum(two < one for one, two in values),
    )


def _correlation(values: Sequence[tuple[float, float]], first: float, second: float) -> float:
    """Return the correlation of pairs with these means, of which a positive covariance is less by 1/(2n)."""
    covariance = fmean([(one - first) * (two - second) for one, two in values])
    if covariance > 0:
        covariance = max(0.0, covariance - 1 / (2 * len(values)))
    spread = math.prod(
        fmean([(value[side] - mean) ** 2 for value in values]) for side, mean in enumerate((first, second))
    )
    return max(-1.0, min(1.0, covariance / math.sqrt(spread))) if spread else 0.0


def _estimate(tasks: Sequence[TaskResult], k: int) -> PassAtK:
    values = [pass_at_k(task.verdicts, task.resolved, k) for task in tasks]
    trials = effective_trials(values, sum(task.verdicts // k for task in tasks))
    value = fmean(values)
    return PassAtK(k, value, *wilson(value, trials), len(tasks), sum(task.verdicts for task in tasks))


def _task_result(name: str, rollouts: Sequence[Finished]) -> TaskResult:
    outcomes = Counter(rollout.outcome for rollout in rollouts)
    return TaskResult(
        task_id=name,
        verdicts=outcomes["resolved"] + outcomes["unresolved"],
        resolved=outcomes["resolved"],
        errors=outcomes["error"],
        cancelled=outcomes["cancelled"],
        seconds=fmean([rollout.seconds for rollout in rollouts]),
    )
