"""The record of a rollout: its tokens are accounted for whatever its outcome, or it is an error."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from swe_core.api.engine import Usage
from swe_core.api.grader import Grade
from swe_core.api.records import Ledger
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import AgentError, LedgerError, SandboxDied
from swe_core.rollout.agent_run import AgentRun
from swe_core.rollout.state import RolloutState
from swe_core.system.redaction import Redactor
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_request, make_task

from ..token_turns import make_sampled


class Unbalanced(TokenLog):
    def ledger(self, no_reward: str | None = None) -> Ledger | None:
        raise LedgerError("3 tokens were sampled and 2 are accounted for")


def _notes(book: TokenLog) -> RolloutState:
    observer: Any = None
    tokens = {"ledger": book.ledger, "chains": book.chains}
    gate: Any = SimpleNamespace(**tokens, turns=1, usage=Usage(), ended_by="turns", finish_reason="length")
    return RolloutState(
        make_request(make_task()), observer, Redactor(), LocalProvider(), agent=AgentRun(gate)
    )


def test_rollout_without_verdict_has_no_trainable_tokens() -> None:
    for outcome, trainable, dropped in (
        ("resolved", 3, {}),
        ("unresolved", 3, {}),
        ("error", 0, {"error": 3}),
        ("cancelled", 0, {"cancelled": 3}),
    ):
        book = TokenLog()
        book.add(0, make_sampled([1], [2, 3, 4]))
        record = _notes(book).record(outcome, datetime.now(UTC), 1.0)
        assert record.outcome == outcome
        ledger = record.ledger
        assert (ledger.sampled, ledger.trainable, ledger.dropped) == (3, trainable, dropped)
        assert (record.ended_by, record.finish_reason) == ("turns", "length")


def test_reward_is_that_of_the_grade() -> None:
    for outcome, grade, reward in (
        ("resolved", Grade(resolved=True), 1.0),
        ("unresolved", Grade(resolved=False), 0.0),
        ("unresolved", Grade(resolved=False, reward=0.5), 0.5),
        ("cancelled", Grade(resolved=True), None),
    ):
        notes = _notes(TokenLog())
        notes.grade = grade
        record = notes.record(outcome, datetime.now(UTC), 1.0)
        assert (record.reward, record.unshaped_reward) == (reward, reward)


def test_unbalanced_tokens_are_an_engine_error_unless_something_failed_before() -> None:
    record = _notes(Unbalanced()).record("resolved", datetime.now(UTC), 1.0)
    assert (record.outcome, record.reward, record.ledger) == ("error", None, None)
    assert (record.failure.boundary, record.failure.type) == ("engine", "LedgerError")
    notes = _notes(Unbalanced())
    notes.fail(AgentError("it crashed"), "agent")
    assert notes.record("error", datetime.now(UTC), 1.0).failure.message == "it crashed"


@pytest.mark.parametrize("collected", [False, True])
def test_abandoned_attempt_leaves_no_trace_in_the_record(collected: bool) -> None:
    """But where only its grading failed, all but that stays."""
    notes = _notes(TokenLog())
    notes.phases |= {"agent": 5.0, "grade": 2.0}
    notes.patch, notes.collected, notes.agent.exit_code = b"diff", collected, 0
    notes.fail(SandboxDied("it is gone"), "grader")
    assert notes.failure is not None
    given_up = notes.give_up_try(notes.failure)
    notes.fail(SandboxDied("it is gone too"), "sandbox")
    record = notes.record("error", datetime.now(UTC), 1.0)
    assert record.retried == (given_up,)
    assert record.failure.message == "it is gone too"
    assert given_up.failure.message == "it is gone"
    of_record = record.patch_bytes, record.phases.agent, record.agent_exit_code, record.turns
    of_attempt = given_up.folder, given_up.turns
    assert of_record == ((4, 5.0, 0, 1) if collected else (0, None, None, 0))
    assert of_attempt == ((None, 0) if collected else ("retried-1", 1))
    assert not collected or given_up.seconds == 2.0
