"""RolloutMetrics: the metrics of the rollout process, with names that choose TRL's reduction.

TRL chooses the reduction by the name and the value: `total` is a sum over the logging window, `max` and
`min` are extrema, a pair is a rate (sum of numerators by sum of denominators), and all others are means.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable

from swe_core.api.records import Rollout
from swe_trainer_trl.journal.groups import Assessed
from swe_trainer_trl.rollouts.messages import ENGINE_LOST, Value

_REMEMBERED = 1000
"""Number of rollouts in the estimate of saved seconds."""


class RolloutMetrics:
    """Counts between two calls of `take`."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._rates: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self._durations: deque[tuple[float, bool]] = deque(maxlen=_REMEMBERED)
        self._since = time.monotonic()

    def rollout(self, rollout: Rollout) -> None:
        """Count a finished rollout. Of an evaluation, only its tokens and seconds count."""
        self._sums["rollout/sandbox_seconds_total"] += rollout.seconds
        self._sums["_tokens"] += rollout.usage.completion_tokens
        if rollout.evaluation is not None:
            return
        self._sums["rollout/finished_total"] += 1
        if rollout.reward is not None:
            self._rate("reward", rollout.reward, 1)
            if rollout.unshaped_reward is not None:
                self._rate("rollout/unshaped_reward", rollout.unshaped_reward, 1)
            self._rate("rollout/resolved_rate", rollout.outcome == "resolved", 1)
            self._rate("rollout/turns", rollout.turns, 1)
            self._rate("rollout/completion_tokens", rollout.usage.completion_tokens, 1)
            self._rate("rollout/seconds", rollout.seconds, 1)
            self._durations.append((rollout.seconds, True))
        if rollout.cancelled_as == ENGINE_LOST:
            self._sums["rollout/engine_lost_total"] += 1
        if rollout.failure is not None:
            self._sums[f"rollout/errors_{rollout.failure.boundary}_total"] += 1
        for phase, seconds in rollout.phases:
            if seconds is not None:
                self._rate(f"phase/{phase}_s", seconds, 1)
        if rollout.ledger is not None:
            self._rate("ledger/trainable_frac", rollout.ledger.trainable, rollout.ledger.sampled)
            self._rate("ledger/summary_frac", rollout.ledger.summaries, rollout.ledger.trainable)
            for reason, tokens in rollout.ledger.dropped.items():
                self._sums[f"ledger/dropped_{reason}_tokens_total"] += tokens
            for cause, chains in rollout.ledger.forks.items():
                self._sums[f"ledger/forks_{cause}_total"] += chains

    def cancelled(self, seconds: float) -> None:
        """Count a rollout that was cancelled as stale after `seconds`, and estimate the savings."""
        self._sums["staleness/cancelled_total"] += 1
        self._sums["staleness/saved_sandbox_seconds_total"] += remaining(seconds, self._durations)
        self._durations.append((seconds, False))

    def group(self, assessed: Assessed) -> None:
        """Count a closed group."""
        self._sums["group/closed_total"] += 1
        self._sums["group/rows_total"] += len(assessed.rows)
        self._sums["staleness/left_out_total"] += len(assessed.stale)
        self._sums["group/overlong_total"] += assessed.cut
        if assessed.skipped is not None:
            self._sums[f"group/skipped_{assessed.skipped}_total"] += 1
        if assessed.reward_std is not None:
            self._rate("group/reward_std", assessed.reward_std, 1)

    def waited(self, seconds: float) -> None:
        """Count seconds in which the limit of groups ahead prevented a new group."""
        self._sums["group/backpressure_s_total"] += seconds

    def take(self, running: int) -> dict[str, Value]:
        """Return the counts since the last call, with the number of running rollouts."""
        now = time.monotonic()
        tokens = self._sums.pop("_tokens", 0.0)
        values: dict[str, Value] = {
            "rollout/running": float(running),
            "rollout/tok_s": (tokens, now - self._since),
            **self._sums,
            **self._rates,
        }
        self._sums.clear()
        self._rates.clear()
        self._since = now
        return values

    def _rate(self, name: str, value: float, weight: float) -> None:
        total, count = self._rates[name]
        self._rates[name] = total + value, count + weight


def remaining(age: float, observed: Iterable[tuple[float, bool]]) -> float:
    """Return the expected remaining seconds of a rollout of this age.

    This is the mean under the product-limit estimate of Kaplan and Meier (1958), in which the duration of a
    cancelled rollout is censored. It ignores durations above the longest observed one, so it is rather low.

    Args:
        age: Seconds since the rollout began.
        observed: Durations of earlier rollouts in seconds, and whether each ended by itself.
    """
    longer = sorted((one for one in observed if one[0] > age), key=lambda one: (one[0], not one[1]))
    expected, surviving, before = 0.0, 1.0, age
    for number, (duration, ended) in enumerate(longer):
        expected += surviving * (duration - before)
        before = duration
        if ended:
            surviving *= 1 - 1 / (len(longer) - number)
    return expected


def most_frequent(failures: Iterable[str]) -> str:
    """Return the most frequent sentence of `failures` with its count; "" without failures."""
    counts: defaultdict[str, int] = defaultdict(int)
    for failure in failures:
        counts[failure] += 1
    if not counts:
        return ""
    sentence, times = max(counts.items(), key=lambda item: item[1])
    return f"{sentence} ({times} times)"
