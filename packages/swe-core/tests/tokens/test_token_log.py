"""The token log: what it records, and what it rejects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.engine import Sampled
from swe_core.errors import LedgerError
from swe_core.tokens.chains import step_of
from swe_core.tokens.token_log import TokenLog

from ..token_turns import make_sampled


def test_record_holds_new_tokens_only() -> None:
    book = TokenLog()
    first = make_sampled([1, 2], [3, 4, 5], logprobs=[-0.1, float("nan"), -2], versions=[0, 0, 1])
    assert book.add(4, first).model_dump() == {
        "base": None,
        "prompt": [1, 2],
        "completion": [3, 4, 5],
        "logprobs": [-0.1, None, -2.0],
        "versions": [(0, 2), (1, 1)],
        "rendered": "full",
        "cause": "start",
        "dropped": None,
    }
    second = book.add(6, make_sampled([6], [7], first), "aborted")
    assert (second.base, second.prompt, second.cause, second.dropped) == (4, [6], None, "aborted")
    assert (ledger := book.ledger()) is not None
    assert ledger.sampled == 4


def test_drop_reason_of_the_gate_precedes_that_of_the_engine() -> None:
    book = TokenLog()
    first = replace(make_sampled([1], [2, 3]), dropped="forced")
    assert book.add(0, first).dropped == "forced"
    assert book.add(1, make_sampled([4], [5], first)).dropped is None
    assert (
        book.add(2, replace(make_sampled([6], [7], first), dropped="forced"), "aborted").dropped == "aborted"
    )
    ledger = book.ledger()
    assert ledger is not None
    assert (ledger.sampled, ledger.trainable, ledger.dropped) == (4, 1, {"forced": 2, "aborted": 1})
    [chain] = book.chains()
    assert chain.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert chain.completion_mask.tolist() == [False] * 4 + [True]


def test_whole_prompt_extends_turn_dropped_by_the_engine() -> None:
    """The agent received those, unlike aborted turns."""
    book = TokenLog()
    assert book.add(0, replace(whole([1], [2]), dropped="forced")).base is None
    assert book.add(1, whole([1, 2, 3], [4])).base == 0
    assert [chain.cause for chain in book.chains()] == ["start"]


def test_branch_is_recorded_with_its_base() -> None:
    book = TokenLog()
    first = make_sampled([1], [2])
    book.add(0, first)
    assert book.add(1, make_sampled([3], [4], first)).cause is None
    again = book.add(2, make_sampled([3], [5], first))
    assert (again.base, again.prompt, again.cause) == (0, [3], "branch")


@settings(deadline=None)
@given(st.lists(st.floats(-100, 0, width=32)))
def test_logprobs_round_trip_exactly(values: list[float]) -> None:
    tokens = TokenLog().add(0, make_sampled([1], [2] * len(values), logprobs=values))
    again = step_of(0, tokens.model_validate_json(tokens.model_dump_json()))
    assert again.logprobs.tobytes() == np.array(values, np.float32).tobytes()


@settings(deadline=None)
@given(st.lists(st.integers(0, 2)))
def test_versions_round_trip(values: list[int]) -> None:
    tokens = TokenLog().add(0, make_sampled([1], [2] * len(values), versions=values))
    assert step_of(0, tokens).versions.tolist() == values


def whole(prompt: list[int], completion: list[int]) -> Sampled:
    return make_sampled(prompt, completion, cause="unknown")


def test_whole_prompts_are_compared_id_by_id() -> None:
    """A prompt that differs in one id in the middle is another prompt."""
    book = TokenLog()
    long = list(range(200))
    assert book.add(0, whole(long, [7])).cause == "start"
    changed = [*long, 7, 8]
    changed[50] += 1
    assert book.add(1, whole(changed, [7])).model_dump(include={"base", "cause"}) == {
        "base": None,
        "cause": "unknown",
    }
    kept = book.add(2, whole([*long, 7, 8], [9]))
    assert (kept.base, kept.prompt, kept.cause) == (0, [8], None)


def test_longest_history_is_extended() -> None:
    book = TokenLog()
    book.add(0, whole([1], [2]))
    book.add(1, whole([1, 2, 3], [4]))
    book.add(2, whole([1], [2]))  # the same reply again: a chain of its own, which the other begins with
    longest = book.add(3, whole([1, 2, 3, 4, 5], [6]))
    assert (longest.base, longest.prompt, longest.cause) == (1, [5], None)


def test_branch_starts_at_the_longest_shared_history() -> None:
    book = TokenLog()
    book.add(0, whole([1], [2]))
    book.add(1, whole([1, 2, 3], [4]))
    book.add(2, whole([1, 2, 3, 4, 5], [6]))
    branch = book.add(3, whole([1, 2, 3, 4, 7], [8]))
    assert (branch.base, branch.prompt, branch.cause) == (1, [7], "branch")
    after = book.add(4, whole([1, 2, 3, 4, 7, 8, 9], [9]))
    assert (after.base, after.prompt, after.cause) == (3, [9], None)


def test_first_chain_of_a_rollout_is_not_a_fork() -> None:
    """Also if the engine does not say so and the first turn was aborted."""
    book = TokenLog()
    book.add(0, whole([1], [2]), "aborted")
    assert book.add(1, whole([1], [3])).cause == "start"
    ledger = book.ledger()
    assert ledger is not None
    assert ledger.forks == {}


def test_unrecorded_turn_cannot_be_extended() -> None:
    with pytest.raises(LedgerError, match="turn 0 extends a turn that was never recorded"):
        TokenLog().add(0, make_sampled([1], [2], make_sampled([1], [2])))


@pytest.mark.parametrize("short", ["logprobs", "versions"])
def test_every_sampled_id_needs_logprob_and_version(short: str) -> None:
    book = TokenLog()
    with pytest.raises(LedgerError, match="turn 3 has 2 sampled ids"):
        book.add(3, make_sampled([1], [2, 3], **{short: [0]}))
    with pytest.raises(LedgerError, match=r"2 sampled, but 0 trainable and 0 dropped, \+2 unaccounted for"):
        book.ledger()


def test_rejected_turn_leaves_the_ledger_unbalanced() -> None:
    """Its tokens are in no chain."""
    book = TokenLog()
    book.add(0, make_sampled([1], [2]))
    with pytest.raises(LedgerError, match="turn 0 is there twice"):
        book.add(0, make_sampled([1], [2, 3]))
    assert [chain.turns for chain in book.chains()] == [(0,)]
    with pytest.raises(LedgerError, match=r"3 sampled, but 0 trainable and 1 error dropped, \+2 unaccounted"):
        book.ledger("error")


def test_empty_token_log_has_no_ledger() -> None:
    assert TokenLog().ledger() is None
