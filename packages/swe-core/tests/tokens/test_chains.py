"""Chains of any tree of turns: each sampled id is trained once, after exactly the prompt of its turn.

From memory, from disk, and for engines that do not say which turn they extend.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_core.api.chain import Chain
from swe_core.api.engine import ForkCause, Sampled
from swe_core.api.records import Turn, TurnTokens
from swe_core.errors import LedgerError
from swe_core.report.token_audit import recount
from swe_core.tokens.chains import ChainBuilder, Step, build_chains, chains_of, step_of
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_turn

from ..token_turns import make_sampled

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For busy machines: no deadline, no health check of the speed."""
REWRITES: tuple[ForkCause, ...] = ("rewritten", "template", "retokenised", "truncated")


@dataclass(frozen=True)
class Call:
    """One turn as the simulated engine saw it: its whole prompt, and what it sampled."""

    prompt: list[int]
    sampled: Sampled
    dropped: str | None

    @property
    def completion(self) -> list[int]:
        return self.sampled.completion_ids.tolist()

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.completion

    @property
    def whole(self) -> Sampled:
        """The same turn from an engine that does not say which turn it extends."""
        ids = np.array(self.prompt, np.int32)
        return replace(self.sampled, extends=None, prompt_ids=ids, cause="unknown")


@st.composite
def sessions(draw: st.DrawFn, empty: bool = True) -> list[Call]:
    """Draw the turns of a rollout: any may be continued, repeated, rewritten or dropped.

    Args:
        empty: Whether a completion may be empty. One that is not begins with an id that no other has.
    """
    calls: list[Call] = []
    small = st.integers(1, 3)
    for number in range(draw(st.integers(1, 14))):
        doing = (
            draw(st.sampled_from(["continue", "latest", "again", "rewrite", "start"])) if calls else "start"
        )
        past = calls[-1 if doing == "latest" else draw(st.integers(0, len(calls) - 1))] if calls else None
        extends, cause = None, None
        new = draw(st.lists(small, max_size=5))
        if past is None or doing == "start":
            prompt, cause = [0, *new], "start"
        elif doing == "again":
            prompt, extends, cause = past.prompt, past.sampled.extends, past.sampled.cause
            new = past.sampled.prompt_ids.tolist()
        elif doing == "rewrite":  # the same beginning, but not all ids of any turn
            root = past
            while root.sampled.extends is not None:
                root = next(call for call in calls if call.sampled is root.sampled.extends)
            cut = draw(st.integers(0, max(0, len(root.ids) - 1)))
            prompt, cause = [*root.ids[:cut], 10_000 + number, *new], draw(st.sampled_from(REWRITES))
        else:
            prompt, extends = [*past.ids, *new], past.sampled
        sampled = draw(st.lists(small, max_size=4))
        completion = sampled if empty and not sampled else [1000 + number, *sampled]
        count = len(completion)
        logprob = st.one_of(st.floats(-40, 0, width=32), st.just(float("nan")))
        call = Call(
            prompt,
            make_sampled(
                new if extends is not None else prompt,
                completion,
                extends,
                logprobs=draw(st.lists(logprob, min_size=count, max_size=count)),
                versions=sorted(draw(st.lists(small, min_size=count, max_size=count))),
                rendered=draw(st.sampled_from(["bridge", "template", "full"])),
                cause=cause,
            ),
            draw(st.sampled_from([None, None, None, "aborted", "failed"])),
        )
        calls.append(call)
    return calls


def record(calls: list[Call], third_party: bool = False) -> tuple[TokenLog, list[TurnTokens]]:
    book = TokenLog()
    return book, [
        book.add(index, call.whole if third_party else call.sampled, call.dropped)
        for index, call in enumerate(calls)
    ]


def on_disk(records: list[TurnTokens]) -> list[Turn]:
    """Written, and read back."""
    turns = [make_turn(index, tokens=tokens) for index, tokens in enumerate(records)]
    return [Turn.model_validate_json(turn.model_dump_json()) for turn in turns]


def same(one: Chain, other: Chain) -> bool:
    return one.turns == other.turns and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("input_ids", "completion_mask", "old_log_probs", "versions")
    )


@LOADED
@given(sessions())
def test_chain_is_what_the_engine_saw_and_sampled(calls: list[Call]) -> None:
    """Each completion follows its exact prompt; the mask covers its trainable ids."""
    chains = record(calls)[0].chains()
    for chain in chains:
        assert chain.input_ids.dtype == chain.versions.dtype == np.int32
        assert chain.completion_mask.dtype == np.bool_
        assert chain.old_log_probs.dtype == np.float32
        assert len(chain) == len(calls[chain.turns[-1]].ids)
        mask = np.zeros(len(chain), np.bool_)
        logprobs = np.zeros(len(chain), np.float32)
        versions = np.full(len(chain), -1, np.int32)
        for turn in chain.turns:
            call = calls[turn]
            assert chain.input_ids[: len(call.ids)].tolist() == call.ids
            for at, logprob in enumerate(call.sampled.logprobs, len(call.prompt)):
                if not np.isnan(logprob):
                    mask[at], logprobs[at] = True, logprob
                    versions[at] = call.sampled.versions[at - len(call.prompt)]
        assert np.array_equal(chain.completion_mask, mask)
        assert np.array_equal(chain.old_log_probs, logprobs)
        assert np.array_equal(chain.versions, versions)
    trained = sorted(turn for chain in chains for turn in chain.turns)
    assert trained == [index for index, call in enumerate(calls) if call.dropped is None]


@LOADED
@given(sessions())
def test_ledger_balances_for_any_session(calls: list[Call]) -> None:
    book, _ = record(calls)
    ledger = book.ledger()
    assert ledger is not None
    dropped: Counter[str] = Counter()
    for call in calls:
        known = int(np.count_nonzero(~np.isnan(call.sampled.logprobs)))
        dropped[call.dropped or "no_logprobs"] += len(call.completion) - (0 if call.dropped else known)
    assert ledger.sampled == sum(len(call.completion) for call in calls)
    assert ledger.trainable == ledger.sampled - dropped.total()
    assert ledger.dropped == +dropped
    causes = Counter(chain.cause for chain in book.chains())
    assert ledger.chains == causes.total()
    assert ledger.forks == causes - Counter(start=causes["start"])
    assert ledger.rendered == Counter(call.sampled.rendered for call in calls)


@LOADED
@given(sessions())
def test_parts_of_a_chain_are_its_ids(calls: list[Call]) -> None:
    """The new ids of its turns, one after the other; and those that it trains are named."""
    builder = ChainBuilder()
    for index, tokens in enumerate(record(calls)[1]):
        builder.add(step_of(index, tokens))
    assert len(builder.parts()) == len(builder.build())
    for parts, chain in zip(builder.parts(), builder.build(), strict=True):
        ids = [id_ for step, _ in parts.steps for id_ in (*step.prompt, *step.completion)]
        assert ids == chain.input_ids.tolist()
        assert tuple(step.index for step, trained in parts.steps if trained) == chain.turns
        assert parts.cause == chain.cause


@LOADED
@given(sessions(), st.sampled_from([None, "error", "cancelled"]))
def test_chains_and_ledger_are_the_same_from_disk(calls: list[Call], no_reward: str | None) -> None:
    """The turn that starts a chain has its cause."""
    book, records = record(calls)
    turns = on_disk(records)
    chains = chains_of(turns)
    assert len(chains) == len(book.chains())
    assert all(map(same, chains, book.chains()))
    assert [chain.cause for chain in chains] == [chain.cause for chain in book.chains()]
    assert recount(turns, no_reward) == book.ledger(no_reward)
    for chain in chains:
        assert records[chain.turns[0]].cause == chain.cause
        assert all(records[turn].cause is None for turn in chain.turns[1:])


@LOADED
@given(sessions(), st.sets(st.integers(0, 13)))
def test_undelivered_replies_are_dropped_in_memory_and_on_disk(
    calls: list[Call], undelivered: set[int]
) -> None:
    """A reply that a later turn continues was delivered, even if that turn is dropped."""
    book, records = record(calls)
    asked = sorted(index for index in undelivered if index < len(calls) and calls[index].dropped is None)
    lost = book.drop_undelivered(asked)
    continued = {id(call.sampled.extends) for call in calls}
    assert lost == [index for index in asked if id(calls[index].sampled) not in continued]
    for index in lost:
        records[index] = records[index].model_copy(update={"dropped": "undelivered"})
    chains, turns = book.chains(), on_disk(records)
    stored = chains_of(turns)
    assert len(stored) == len(chains)
    assert all(map(same, stored, chains))
    assert [chain.cause for chain in stored] == [chain.cause for chain in chains]
    assert recount(turns) == book.ledger()
    trained = {turn for chain in chains for turn in chain.turns}
    assert trained == {at for at, call in enumerate(calls) if call.dropped is None} - set(lost)


@LOADED
@given(sessions(empty=False))
def test_chains_are_the_same_for_whole_prompts(calls: list[Call]) -> None:
    """The extended turn is found by comparing ids."""
    known, found = record(calls)[0].chains(), record(calls, third_party=True)[0].chains()
    assert len(known) == len(found)
    assert all(map(same, known, found))
    if not any(call.dropped for call in calls):
        assert [chain.cause == "branch" for chain in known] == [chain.cause == "branch" for chain in found]
        assert found[0].cause == "start"


@LOADED
@given(sessions())
def test_turns_on_disk_grow_linearly(calls: list[Call]) -> None:
    """No id of a base is written again."""
    for index, tokens in enumerate(record(calls)[1]):
        assert len(tokens.prompt) == len(calls[index].sampled.prompt_ids)
    for index, tokens in enumerate(record(calls, third_party=True)[1]):
        base = 0 if tokens.base is None else len(calls[tokens.base].ids)
        assert tokens.prompt == calls[index].prompt[base:]


# By hand.


def step(index: int, base: int | None, prompt: list[int], completion: list[int], **options: object) -> Step:
    options.setdefault("cause", "start" if base is None else None)
    count = len(completion)
    return Step(
        index,
        base,
        np.array(prompt, np.int32),
        np.array(completion, np.int32),
        np.full(count, -1, np.float32),
        np.zeros(count, np.int32),
        **options,
    )


def shape(*steps: Step) -> list[tuple[tuple[int, ...], str]]:
    return [(chain.turns, chain.cause) for chain in build_chains(steps)]


def test_consecutive_turns_are_one_chain() -> None:
    (chain,) = build_chains([step(0, None, [1, 2], [3]), step(1, 0, [4], [5, 6])])
    assert chain.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert chain.completion_mask.tolist() == [False, False, True, False, True, True]
    assert chain.old_log_probs.tolist() == [0, 0, -1, 0, -1, -1]
    assert chain.versions.tolist() == [-1, -1, 0, -1, 0, 0]


@pytest.mark.parametrize("compactions", [0, 1, 3])
def test_each_compaction_adds_two_chains(compactions: int) -> None:
    """One is the request for a summary, the other continues from it."""
    steps = [step(0, None, [1], [2]), step(1, 0, [3], [4])]
    for _ in range(compactions):
        at = len(steps)
        steps += [
            step(at, None, [9, 1, 3], [5]),
            step(at + 1, None, [1, 5], [6], cause="rewritten"),
            step(at + 2, at + 1, [3], [7]),
        ]
    assert len(build_chains(steps)) == 1 + 2 * compactions


def test_interleaved_sub_agents_have_their_own_chains() -> None:
    assert shape(
        step(0, None, [1], [2]),
        step(1, None, [7], [8]),
        step(2, 0, [3], [4]),
        step(3, 1, [9], [8]),
        step(4, None, [7, 7], [8]),
        step(5, 2, [3], [4]),
        step(6, 3, [9], [8]),
    ) == [((0, 2, 5), "start"), ((1, 3, 6), "start"), ((4,), "start")]


def test_second_reply_to_a_history_is_a_branch() -> None:
    """Its chain has the history as context and trains no id twice."""
    first, second = build_chains([step(0, None, [1], [2]), step(1, 0, [3], [4]), step(2, 0, [3], [5])])
    assert (first.turns, first.cause) == ((0, 1), "start")
    assert (second.turns, second.cause) == ((2,), "branch")
    assert second.input_ids.tolist() == [1, 2, 3, 5]
    assert second.completion_mask.tolist() == [False, False, False, True]


def test_retry_after_an_abort_continues_the_chain() -> None:
    assert shape(step(0, None, [1], [2]), step(1, 0, [3], [4], dropped="aborted"), step(2, 0, [3], [5])) == [
        ((0, 2), "start")
    ]


def test_dropped_turn_is_context_of_its_continuation() -> None:
    (chain,) = build_chains(
        [step(0, None, [1], [2]), step(1, 0, [3], [4], dropped="aborted"), step(2, 1, [5], [6])]
    )
    assert chain.turns == (0, 2)
    assert chain.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert chain.completion_mask.tolist() == [False, True, False, False, False, True]


def test_dropped_first_turn_starts_no_chain() -> None:
    """Its retry starts one, as does its first continuation; a second continuation is a branch."""
    aborted = step(0, None, [1], [2], dropped="aborted")
    assert shape(aborted, step(1, None, [1], [3])) == [((1,), "start")]
    assert shape(aborted, step(1, 0, [3], [4]), step(2, 0, [5], [6])) == [((1,), "start"), ((2,), "branch")]
    assert shape(aborted) == []


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([step(0, None, [1], [2]), step(0, None, [1], [2])], "turn 0 is there twice"),
        ([step(1, 0, [1], [2])], "turn 1 continues turn 0, which must come before it"),
    ],
)
def test_inconsistent_turns_are_rejected(steps: list[Step], words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        build_chains(steps)
