"""Which attempts were cut short, and the setting that says what becomes of them."""

from __future__ import annotations

from typing import Any

from swe_core.api.records import Failure
from swe_testing.records import make_rollout
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.overlong import is_overlong

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
