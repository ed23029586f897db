"""The token book: what it writes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.engine import ForkCause, Sampled
from swe_core.errors import LedgerError
from swe_core.tokens.chains import step_of
from swe_core.tokens.token_log import TokenLog


def sampled(
    prompt: list[int],
    completion: list[int],
    extends: Sampled | None = None,
    cause: ForkCause | None = "start",
    logprobs: list[float] | None = None,
    versions: list[int] | None = None,
) -> Sampled:
    return Sampled(
        extends,
        np.array(prompt, np.int32),
        np.array(completion, np.int32),
        np.array([-0.5] * len(completion) if logprobs is None else logprobs, np.float32),
        np.array([0] * len(completion) if versions is None else versions, np.int32),
        "bridge",
        None if extends else cause,
    )


def test_a_record_holds_what_is_new() -> None:
    book = TokenLog()
    first = sampled([1, 2], [3, 4, 5], logprobs=[-0.1, float("nan"), -2], versions=[0, 0, 1])
    assert book.add(4, first).model_dump() == {
        "base": None,
        "prompt": [1, 2],
        "completion": [3, 4, 5],
        "logprobs": [-0.1, None, -2.0],
        "versions": [(0, 2), (1, 1)],
        "rendered": "bridge",
        "cause": "start",
        "dropped": None,
    }
    second = book.add(6, sampled([6], [7], first), "aborted")
    assert (second.base, second.prompt, second.cause, second.dropped) == (4, [6], None, "aborted")
    assert [step.index for step in book.steps] == [4, 6]


def test_an_engines_reason_drops_a_turn_and_the_gates_comes_first() -> None:
    book = TokenLog()
    first = replace(sampled([1], [2, 3]), dropped="forced")
    assert book.add(0, first).dropped == "forced"
    assert book.add(1, sampled([4], [5], first)).dropped is None
    assert book.add(2, replace(sampled([6], [7], first), dropped="forced"), "aborted").dropped == "aborted"
    ledger = book.ledger()
    assert ledger is not None
    assert (ledger.sampled, ledger.trained, ledger.dropped) == (4, 1, {"forced": 2, "aborted": 1})
    [chain] = book.chains()
    assert chain.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert chain.completion_mask.tolist() == [False] * 4 + [True]


def test_whole_prompts_go_on_from_turns_that_an_engine_drops() -> None:
    """The agent has heard those, unlike what was aborted."""
    book = TokenLog()
    assert book.add(0, replace(whole([1], [2]), dropped="forced")).base is None
    assert book.add(1, whole([1, 2, 3], [4])).base == 0
    assert [chain.cause for chain in book.chains()] == ["start"]


def test_a_branch_is_written_with_its_base() -> None:
    book = TokenLog()
    first = sampled([1], [2])
    book.add(0, first)
    assert book.add(1, sampled([3], [4], first)).cause is None
    again = book.add(2, sampled([3], [5], first))
    assert (again.base, again.prompt, again.cause) == (0, [3], "branch")


@settings(deadline=None)
@given(st.lists(st.floats(-100, 0, width=32)))
def test_logprobs_are_read_back_bit_for_bit(values: list[float]) -> None:
    tokens = TokenLog().add(0, sampled([1], [2] * len(values), logprobs=values))
    again = step_of(0, tokens.model_validate_json(tokens.model_dump_json()))
    assert again.logprobs.tobytes() == np.array(values, np.float32).tobytes()


@settings(deadline=None)
@given(st.lists(st.integers(0, 2)))
def test_versions_are_read_back(values: list[int]) -> None:
    tokens = TokenLog().add(0, sampled([1], [2] * len(values), versions=values))
    assert step_of(0, tokens).versions.tolist() == values


def whole(prompt: list[int], completion: list[int]) -> Sampled:
    return sampled(prompt, completion, cause="unknown")


def test_whole_prompts_are_compared_id_by_id() -> None:
    """The same length, the same end, one other id in the middle: not the same."""
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


def test_the_longest_history_is_continued() -> None:
    book = TokenLog()
    book.add(0, whole([1], [2]))
    book.add(1, whole([1, 2, 3], [4]))
    book.add(2, whole([1], [2]))  # the same reply again: a chain of its own, which the other begins with
    longest = book.add(3, whole([1, 2, 3, 4, 5], [6]))
    assert (longest.base, longest.prompt, longest.cause) == (1, [5], None)


def test_a_branch_leaves_the_longest_history_that_it_has() -> None:
    book = TokenLog()
    book.add(0, whole([1], [2]))
    book.add(1, whole([1, 2, 3], [4]))
    book.add(2, whole([1, 2, 3, 4, 5], [6]))
    branch = book.add(3, whole([1, 2, 3, 4, 7], [8]))
    assert (branch.base, branch.prompt, branch.cause) == (1, [7], "branch")
    after = book.add(4, whole([1, 2, 3, 4, 7, 8, 9], [9]))
    assert (after.base, after.prompt, after.cause) == (3, [9], None)


def test_the_first_chain_of_a_rollout_is_no_fork() -> None:
    """Even where the engine does not say so, and its first turn was aborted."""
    book = TokenLog()
    book.add(0, whole([1], [2]), "aborted")
    assert book.add(1, whole([1], [3])).cause == "start"
    ledger = book.ledger()
    assert ledger is not None
    assert ledger.forks == {}


def test_a_turn_that_was_never_added_cannot_be_extended() -> None:
    with pytest.raises(LedgerError, match="turn 0 extends a turn that was never recorded"):
        TokenLog().add(0, sampled([1], [2], sampled([1], [2])))


@pytest.mark.parametrize("short", ["logprobs", "versions"])
def test_each_sampled_id_has_a_logprob_and_a_version(short: str) -> None:
    book = TokenLog()
    with pytest.raises(LedgerError, match="turn 3 has 2 sampled ids"):
        book.add(3, sampled([1], [2, 3], **{short: [0]}))
    with pytest.raises(LedgerError, match=r"2 sampled, but 0 trained and 0 dropped, \+2 unaccounted for"):
        book.ledger()


def test_the_tokens_of_a_turn_that_is_refused_are_missed() -> None:
    """It is in no row, and no ledger says that all is well."""
    book = TokenLog()
    book.add(0, sampled([1], [2]))
    with pytest.raises(LedgerError, match="turn 0 is there twice"):
        book.add(0, sampled([1], [2, 3]))
    assert [chain.turns for chain in book.chains()] == [(0,)]
    with pytest.raises(LedgerError, match=r"3 sampled, but 0 trained and 1 error dropped, \+2 unaccounted"):
        book.ledger("error")


def test_without_tokens_there_is_no_ledger() -> None:
    assert TokenLog().ledger() is None
