"""RolloutMetrics: counts and rates, by the names that TRL reduces by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.engine import Usage
from swe_core.api.records import Failure, Ledger, Phases, Rollout
from swe_testing.records import make_rollout
from swe_trainer_trl.journal.groups import Assessed
from swe_trainer_trl.rollouts.messages import Metrics, Value, line, report
from swe_trainer_trl.rollouts.metrics import RolloutMetrics, remaining


def rollout(**changed: Any) -> Rollout:
    values: dict[str, Any] = {"turns": 3, "seconds": 10.0, "phases": Phases(open=1.0, agent=5.0)}
    values |= {"usage": Usage(prompt_tokens=50, completion_tokens=20)}
    return make_rollout(**{**values, **changed})


def logged(*windows: dict[str, Value]) -> dict[str, float]:
    """What TRL makes of what it drained from the queue."""
    from swe_trainer_trl.compat import trainer_module  # imports TRL, which takes seconds

    found: dict[str, list[Value]] = {}
    for window in windows:
        for name, value in window.items():
            found.setdefault(name, []).append(value)
    return {name: trainer_module._reduce_metric(name, values) for name, values in found.items()}


@pytest.mark.slow
def test_rates_are_weighted_and_counts_are_summed_over_windows() -> None:
    """An error is counted by its boundary, and has no part in the rates."""
    tally = RolloutMetrics()
    failure = Failure(boundary="sandbox", type="SandboxDied", message="gone")
    tally.rollout(rollout())
    tally.rollout(rollout(outcome="unresolved", turns=5, seconds=20.0))
    tally.group(Assessed((), "no_spread", (), 1, 1.0, 0.0))
    tally.waited(2.5)
    first = tally.take(7)
    tally.rollout(rollout(turns=7, seconds=30.0))
    tally.rollout(rollout(outcome="error", reward=None, failure=failure, turns=99))
    tally.group(Assessed((), "stale", ("a", "b"), None, None, None))
    got = logged(first, tally.take(5))
    assert got.pop("rollout/tok_s") > 0
    assert got["reward"] == got["rollout/resolved_rate"] == pytest.approx(2 / 3)
    expected = {"turns": 5, "seconds": 20, "completion_tokens": 20, "finished_total": 4, "running": 6}
    expected |= {"sandbox_seconds_total": 70, "errors_sandbox_total": 1}
    assert {name: got[f"rollout/{name}"] for name in expected} == expected
    assert got["phase/open_s"] == 1
    assert "phase/grade_s" not in got
    expected = {"closed_total": 2, "skipped_no_spread_total": 1, "skipped_stale_total": 1, "rows_total": 0}
    expected |= {"reward_std": 0, "backpressure_s_total": 2.5}
    assert {name: got[f"group/{name}"] for name in expected} == expected
    assert got["staleness/left_out_total"] == 2
    rest = tally.take(0)  # nothing is counted again
    assert rest.keys() == {"rollout/running", "rollout/tok_s"}
    assert rest["rollout/tok_s"][0] == 0.0


def test_destinations_of_tokens() -> None:
    tally = RolloutMetrics()
    forks: Any = {"start": 1, "rewritten": 2}
    tally.rollout(
        rollout(ledger=Ledger(sampled=10, trainable=8, dropped={"forced": 2}, chains=3, forks=forks))
    )
    tally.rollout(rollout(ledger=Ledger(sampled=30, trainable=0, dropped={"stale": 30})))
    got = logged(tally.take(0))
    assert got["ledger/trainable_frac"] == 0.2
    assert got["ledger/dropped_forced_tokens_total"] == 2
    assert got["ledger/dropped_stale_tokens_total"] == 30
    assert got["ledger/forks_rewritten_total"] == 2


def test_remaining_time_of_a_cancelled_rollout_is_estimated_from_longer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tally = RolloutMetrics()
    tally.cancelled(3.0)  # nothing to compare with
    for seconds in (2.0, 10.0, 20.0):
        tally.rollout(rollout(seconds=seconds))
    tally.rollout(rollout(outcome="error", reward=None, seconds=500.0))  # not how long a rollout takes
    tally.cancelled(5.0)
    tally.cancelled(20.0)  # nothing lasted longer
    got = tally.take(0)
    assert got["staleness/cancelled_total"] == 3
    assert got["staleness/saved_sandbox_seconds_total"] == pytest.approx((5 + 15) / 2)


def test_cancelled_rollouts_count_as_longer_than_they_were() -> None:
    """By hand: of four that lasted beyond 5 s one ended at 10 s, so 3/4 survive; the one cancelled at 12 s
    takes nobody with it; of the two left one ended at 20 s."""
    observed = [(2.0, True), (10.0, True), (12.0, False), (20.0, True), (30.0, True)]
    assert remaining(5.0, observed) == pytest.approx(5 + 0.75 * 10 + 0.75 / 2 * 10)
    assert remaining(30.0, observed) == 0


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False)))
def test_metrics_go_over_the_pipe_unchanged(values: dict[str, float]) -> None:
    sent = Metrics(values={**values, "rate": (1.0, 3.0)})
    data = line(sent)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert report(data) == sent
