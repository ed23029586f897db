"""pass@k and its intervals: against closed forms and by enumeration."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.report import statistics as stats
from swe_testing.records import make_rollout


def task(verdicts: int, resolved: int, name: str = "t") -> stats.TaskResult:
    return stats.TaskResult(name, verdicts, resolved, errors=0, cancelled=0, seconds=1.0)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_resolved_choices_of_k(case: tuple[int, int, int]) -> None:
    n, c, k = case
    assert stats.pass_at_k(5000, 1, 2500) == pytest.approx(0.5)  # without an overflow
    choices = list(combinations([True] * c + [False] * (n - c), k))
    assert stats.pass_at_k(n, c, k) == pytest.approx(fmean(any(choice) for choice in choices))


def test_pass_at_k_rejects_impossible_counts() -> None:
    for n, c, k in ((3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1), (0, 0, 1)):
        with pytest.raises(ValueError, match="expected 1 <= k <= n"):
            stats.pass_at_k(n, c, k)


def test_wilson_matches_the_closed_form() -> None:
    """The ends are where the score test is just on the edge: |share - p| = z sqrt(p (1 - p) / n)."""
    z = 1.959963984540054
    for share, trials in ((0.5, 100), (0.1, 20), (0.9, 7.5)):
        low, high = stats.wilson(share, trials)
        for end in (low, high):
            assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / trials))
        assert low < share < high
    assert stats.wilson(0.0, 10) == (0.0, pytest.approx(z**2 / (10 + z**2)))
    assert stats.wilson(1.0, 10) == (pytest.approx(10 / (10 + z**2)), 1.0)


@given(st.floats(0, 1), st.floats(1, 1e6))
def test_wilson_interval_contains_its_share(share: float, trials: float) -> None:
    low, high = stats.wilson(share, trials)
    assert 0 <= low <= share <= high <= 1
    wide_low, wide_high = stats.wilson(share, trials / 2)
    assert wide_low <= low + 1e-12
    assert high <= wide_high + 1e-12


def test_effective_trials_apply_the_design_effect() -> None:
    values = [0.0, 0.5, 1.0, 0.5]
    of_the_mean = np.var(values) / len(values)
    assert stats.effective_trials(values, 1000) == pytest.approx(0.25 / of_the_mean)
    assert stats.effective_trials([0.5, 0.5], 8) == 8  # all alike: every attempt tells something
    assert stats.effective_trials([1.0, 1.0], 8) == 2  # nothing is known of how they differ
    assert stats.effective_trials([0.0, 1.0], 8) == 2  # a task's attempts are all the same


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["resolved", "unresolved", "error", "cancelled"])),
        max_size=30,
    )
)
def test_every_rollout_counts_once_and_errors_do_not_count(drawn: list[tuple[str, str]]) -> None:
    rollouts = [make_rollout(name, number, outcome) for number, (name, outcome) in enumerate(drawn)]
    tasks = stats.task_results(rollouts)
    assert [one.task_id for one in tasks] == sorted({name for name, _ in drawn})
    assert sum(one.attempts for one in tasks) == len(drawn)
    scored = [one for one in rollouts if one.reward is not None]
    assert stats.estimates(tasks) == stats.estimates(stats.task_results(scored))
    for one in stats.estimates(tasks):
        assert one.tasks == sum(result.verdicts >= one.k for result in tasks) > 0
        assert 0 <= one.low <= one.value <= one.high <= 1


def test_estimates_choose_k() -> None:
    assert stats.estimates([]) == ()
    assert stats.estimates([task(0, 0)]) == ()
    assert [one.k for one in stats.estimates([task(1, 1)])] == [1]
    assert [(one.k, one.tasks) for one in stats.estimates([task(6, 1), task(3, 0), task(0, 0)])] == [
        (1, 2), (2, 2), (4, 1), (6, 1),
    ]  # fmt: skip


def test_paired_difference_is_newcombes_method_10() -> None:
    """Airway hyper-responsiveness before and after a transplantation (Bentur et al. 2009), as Fagerland,
    Lydersen and Laake give it in "Recommended tests and confidence intervals for paired binomial
    proportions", Statistics in Medicine 33 (2014).
    """
    assert stats.paired_difference([]) is None
    cells = (((1, 1), 1), ((1, 0), 1), ((0, 1), 7), ((0, 0), 12))  # resolved by both, by one, by none
    pairs = [(task(1, one), task(1, two)) for (one, two), number in cells for _ in range(number)]
    found = stats.paired_difference(pairs)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.286, 0.026, 0.507), abs=5e-4)
    assert (found.tasks, found.better, found.worse) == (21, 7, 1)
    assert (found.first, found.second) == pytest.approx((2 / 21, 8 / 21))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_paired_difference_is_antisymmetric_and_in_its_interval(counts: list[tuple[int, int]]) -> None:
    pairs = [(task(4, one), task(4, two)) for one, two in counts]
    there, back = stats.paired_difference(pairs), stats.paired_difference([(two, one) for one, two in pairs])
    assert there is not None
    assert back is not None
    assert -1 <= there.low <= there.value <= there.high <= 1
    assert (back.value, back.low, back.high) == pytest.approx(
        (-there.value, -there.high, -there.low), abs=1e-9
    )
    assert (back.better, back.worse) == (there.worse, there.better)
