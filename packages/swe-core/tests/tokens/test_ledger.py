"""The ledger: it balances or it raises."""

from __future__ import annotations

import numpy as np
import pytest

from swe_core.api.records import Ledger
from swe_core.errors import LedgerError
from swe_core.tokens.chains import Step, build_chains
from swe_core.tokens.ledger import add_ledgers, prove


def step(index: int, base: int | None, completion: int, dropped: str | None = None) -> Step:
    logprobs = np.full(completion, -1, np.float32)
    logprobs[2:3] = np.nan  # the third has none
    prompt, ids, versions = np.array([1]), np.full(completion, 7), np.zeros(completion)
    rendered, cause = ("full", "start") if base is None else ("bridge", None)
    return Step(index, base, prompt, ids, logprobs, versions, rendered, cause, dropped)


STEPS = [step(0, None, 2), step(1, 0, 3), step(2, 1, 4, "aborted"), step(3, 0, 1)]


def test_every_token_is_trainable_or_dropped_with_a_reason() -> None:
    assert prove(10, STEPS, build_chains(STEPS)) == Ledger(
        sampled=10,
        trainable=5,
        dropped={"no_logprobs": 1, "aborted": 4},
        chains=2,
        forks={"branch": 1},
        rendered={"full": 1, "bridge": 3},
    )


@pytest.mark.parametrize("outcome", ["error", "cancelled"])
def test_rollout_without_verdict_trains_nothing(outcome: str) -> None:
    ledger = prove(10, STEPS, build_chains(STEPS), outcome)
    assert ledger.trainable == 0
    assert ledger.dropped == {"no_logprobs": 1, "aborted": 4, outcome: 5}


@pytest.mark.parametrize(("sampled", "missing"), [(11, r"\+1"), (9, "-1")])
def test_unbalanced_ledger_raises_with_the_numbers(sampled: int, missing: str) -> None:
    words = f"{sampled} sampled, but 5 trainable and 1 no_logprobs, 4 aborted dropped, {missing} unaccounted"
    with pytest.raises(LedgerError, match=words):
        prove(sampled, STEPS, build_chains(STEPS))


def test_token_in_no_chain_or_in_two_raises() -> None:
    first, second = build_chains(STEPS)
    for wrong in ([first], [first, second, second]):
        with pytest.raises(LedgerError, match="does not balance"):
            prove(10, STEPS, wrong)


def test_ledgers_are_added() -> None:
    one = Ledger(sampled=3, trainable=1, dropped={"aborted": 2}, chains=1, rendered={"full": 1})
    other = Ledger(
        sampled=5, trainable=1, dropped={"aborted": 1, "error": 3}, chains=2, forks={"branch": 1},
        rendered={"full": 1, "bridge": 4},
    )  # fmt: skip
    assert add_ledgers([one, other]) == Ledger(
        sampled=8,
        trainable=2,
        dropped={"aborted": 3, "error": 3},
        chains=3,
        forks={"branch": 1},
        rendered={"full": 2, "bridge": 4},
    )
    assert add_ledgers([]) == Ledger(sampled=0, trainable=0)
