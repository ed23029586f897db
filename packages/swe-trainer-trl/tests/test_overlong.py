"""Which attempts were cut short, and the setting that says what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.api.records import Failure, Ledger
from swe_core.api.worker import FinishedRollout
from swe_testing.records import make_rollout
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.overlong import AgentErrors, counted_reward, is_overlong

LATE = Failure(boundary="agent", type="AgentTimeout", message="it did not end")


def test_budgets_and_cut_replies_make_an_attempt_overlong() -> None:
    cut: list[dict[str, Any]] = [
        {"finish_reason": "length"},
        {"ended_by": "turns", "finish_reason": "stop"},
        {"ended_by": "wall"},
        {"ended_by": "context"},
    ]
    assert all(is_overlong(make_rollout(**fields)) for fields in cut)
    whole: list[dict[str, Any]] = [{}, {"finish_reason": "stop"}, {"outcome": "error", "failure": LATE}]
    assert not any(is_overlong(make_rollout(**fields)) for fields in whole)
    assert TRLConfig().overlong == "grade"


SOME = Ledger(sampled=3, trainable=0, dropped={"error": 3})
LOST = Failure(boundary="sandbox", type="SandboxDied", message="the host is gone")


@pytest.mark.parametrize(
    ("fields", "zero", "drop"),
    [
        ({}, 1.0, 1.0),
        ({"agent_failure": "killed"}, 1.0, None),
        ({"agent_failure": "killed", "outcome": "unresolved"}, 0.0, None),
        ({"outcome": "error", "failure": LATE, "ledger": SOME}, 0.0, None),
        ({"outcome": "error", "failure": LATE}, None, None),
        ({"outcome": "error", "failure": LOST, "ledger": SOME}, None, None),
        ({"outcome": "cancelled", "ledger": SOME}, None, None),
    ],
)
def test_agent_that_failed_does_not_escape_its_0(
    fields: dict[str, Any], zero: float | None, drop: float | None
) -> None:
    finished = FinishedRollout(make_rollout(**fields), ())
    settings: tuple[AgentErrors, AgentErrors] = ("zero", "drop")
    assert [counted_reward(finished, setting) for setting in settings] == [zero, drop]
    assert TRLConfig().agent_errors == "zero"
