"""Which attempts were cut short, and the setting that says what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from swe_core.api.records import Failure
from swe_testing.records import make_rollout
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.overlong import is_overlong

LATE = Failure(boundary="agent", type="AgentTimeout", message="it did not end")


@pytest.mark.parametrize(
    ("fields", "cut"),
    [
        ({}, False),
        ({"finish_reason": "stop"}, False),
        ({"finish_reason": "tool_calls"}, False),
        ({"finish_reason": "length"}, True),
        ({"ended_by": "turns", "finish_reason": "stop"}, True),
        ({"ended_by": "wall"}, True),
        ({"ended_by": "context"}, True),
        ({"outcome": "error", "failure": LATE}, False),
    ],
)
def test_budgets_and_cut_replies_make_an_attempt_overlong(fields: dict[str, Any], cut: bool) -> None:
    assert is_overlong(make_rollout(**fields)) is cut


def test_unknown_setting_is_refused() -> None:
    assert TRLConfig().overlong == "grade"
    with pytest.raises(ValidationError, match="'grade', 'exclude' or 'zero'"):
        TRLConfig(overlong="mask")  # type: ignore[arg-type]  # wrong on purpose
