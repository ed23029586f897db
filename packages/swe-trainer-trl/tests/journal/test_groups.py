"""Groups: TRL's own advantages, and which attempts become rows."""

import asyncio
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.chain import Chain
from swe_core.errors import LedgerError
from swe_core.rollout.training_records import ClosedGroup
from swe_trainer_trl.journal.groups import Assessed, Member, advantages, assess, closed_group

REWARDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-1e6, 1e6))


def chain(mask: list[bool], version: int = 0) -> Chain:
    known = np.array(mask, np.bool_)
    return Chain(
        (0,),
        np.arange(len(mask), dtype=np.int32),
        known,
        np.where(known, -0.5, 0).astype(np.float32),
        np.where(known, version, -1).astype(np.int32),
        "start",
    )


def member(name: str, reward: float | None, *masks: list[bool], version: int | None = 0) -> Member:
    chains = tuple(chain(mask, version or 0) for mask in masks)
    return Member(name, 0, reward, chains, version, version)


@st.composite
def groups(draw: st.DrawFn) -> list[Member]:
    members = []
    for number in range(draw(st.integers(0, 6))):
        reward = draw(st.none() | st.sampled_from([0.0, 0.5, 1.0]))
        masks = draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), max_size=3))
        version = draw(st.integers(0, 9))
        sampled = any(map(any, masks)) or draw(st.booleans())
        members.append(member(f"r{number}", reward, *masks, version=version if sampled else None))
    return members


def assessed(members: list[Member], **changed: Any) -> Assessed:
    options = {"update": 9, "max_staleness": 9, "min_scored": 2, "keep_without_spread": False}
    return assess(members, **{**options, **changed})


@given(groups(), st.integers(9, 12), st.integers(0, 12), st.integers(1, 4), st.booleans())
def test_group_is_rows_or_a_reason(
    members: list[Member], version: int, max_staleness: int, min_scored: int, keep: bool
) -> None:
    got = assess(
        members,
        update=version,
        max_staleness=max_staleness,
        min_scored=min_scored,
        keep_without_spread=keep,
    )
    scored = [m for m in members if m.reward is not None]
    used = [m for m in scored if m.oldest is None or version - m.oldest <= max_staleness]
    rewards = [m.reward for m in used]
    versions = [m.oldest for m in used if m.oldest is not None]
    assert got.stale == tuple(m.rollout_id for m in scored if m not in used)
    assert got.update == (min(versions) if versions else None)
    if rewards:
        assert got.reward_mean == np.mean(rewards)
        assert got.reward_std == np.std(rewards)
    else:
        assert got.reward_mean is got.reward_std is None

    assert bool(got.rows) == (got.skipped is None)
    if len(used) < min_scored:
        assert got.skipped == ("stale" if len(scored) >= min_scored else "too_few_scored")
    elif len(set(rewards)) == 1 and not keep:
        assert got.skipped == "no_spread"
    else:
        # Exactly the trainable chains of the members that count, in order.
        baseline = dict(zip((m.rollout_id for m in used), advantages(rewards), strict=True))
        expected = [(m, c) for m in used for c in m.chains if c.completion_mask.any()]
        places = [n for m in used for n, c in enumerate(m.chains) if c.completion_mask.any()]
        assert [row.chain for row in got.rows] == places
        assert got.advantages == (baseline if expected else {})
        assert got.skipped == (None if expected else "no_tokens")
        assert len(got.rows) == len(expected)
        for row, (owner, source) in zip(got.rows, expected, strict=True):
            assert row.rollout_id == owner.rollout_id
            assert row.advantage == baseline[owner.rollout_id]
            assert row.reward == owner.reward
            assert row.update == min(versions)
            for array, of, dtype in (
                (row.input_ids, source.input_ids, np.int64),
                (row.completion_mask, source.completion_mask, np.int64),
                (row.old_log_probs, source.old_log_probs, np.float32),
            ):
                assert array.dtype == dtype
                np.testing.assert_array_equal(array, of)


def test_line_of_a_group_says_what_became_of_each_attempt() -> None:
    members = [
        Member("silent", 3, 0.0, (), None, None),
        Member("good", 0, 1.0, (chain([False]), chain([True], 5)), 5, 5),
        Member("old", 1, 1.0, (chain([True], 1),), 1, 1),
        Member("error", 2, None, (), None, None),
    ]
    got = closed_group(7, "task", members, assessed(members, update=6, max_staleness=1))
    good, bad = advantages([1.0, 0.0]).tolist()
    line = {"advantage": None, "left_out": None, "overlong": False}
    assert got.model_dump() == {
        "group": 7,
        "task_id": "task",
        "members": (
            {**line, "rollout_id": "good", "reward": 1.0, "advantage": pytest.approx(good)},
            {**line, "rollout_id": "old", "reward": 1.0, "left_out": "stale"},
            {**line, "rollout_id": "error", "reward": None, "left_out": "no_reward"},
            {**line, "rollout_id": "silent", "reward": 0.0, "advantage": pytest.approx(bad)},
        ),
        "skipped": None,
    }


@pytest.mark.parametrize(
    ("rewards", "masks", "skipped"),
    [
        ((1.0, 1.0), [True], "no_spread"),
        ((1.0, None), [True], "too_few_scored"),
        ((1.0, 0.0), [False], "no_tokens"),
    ],
)
def test_line_of_a_skipped_group_has_the_reason_and_no_advantages(
    rewards: tuple[float | None, ...], masks: list[bool], skipped: str
) -> None:
    members = [member(f"r{n}", reward, masks) for n, reward in enumerate(rewards)]
    got: ClosedGroup = closed_group(0, "task", members, assessed(members))
    assert got.skipped == skipped
    assert [one.advantage for one in got.members] == [None, None]
    assert [one.reward for one in got.members] == list(rewards)


def test_errors_are_not_in_the_baseline() -> None:
    got = assessed([member("good", 1.0, [True]), member("bad", 0.0, [True]), member("error", None, [True])])
    assert [(row.rollout_id, round(row.advantage, 3)) for row in got.rows] == [("good", 1.0), ("bad", -1.0)]


def test_member_without_tokens_counts_for_the_baseline() -> None:
    got = assessed([member("good", 1.0, [True]), member("silent", 0.0, [False], version=None)])
    assert [(row.rollout_id, round(row.advantage, 3)) for row in got.rows] == [("good", 1.0)]


def test_stale_member_is_as_if_cancelled() -> None:
    members = [
        member("old", 1.0, [True], version=4),
        member("good", 1.0, [True], version=5),
        member("bad", 0.0, [True], version=6),
    ]
    got = assessed(members, update=6, max_staleness=1)
    assert got.stale == ("old",)
    assert [(row.rollout_id, row.update) for row in got.rows] == [("good", 5), ("bad", 5)]
    assert assessed(members[:2], update=6, max_staleness=1).skipped == "stale"


def cut(name: str, reward: float | None, **changed: Any) -> Member:
    return replace(member(name, reward, [True]), overlong=True, **changed)


MIXED = [member("good", 1.0, [True]), member("bad", 0.0, [True]), cut("cut", 0.5)]


def test_excluded_member_is_neither_in_the_baseline_nor_trained() -> None:
    got = assessed(MIXED, overlong="exclude")
    assert [(row.rollout_id, round(row.advantage, 3)) for row in got.rows] == [("good", 1.0), ("bad", -1.0)]
    assert (got.overlong, got.cut, got.stale, got.skipped) == (("cut",), 1, (), None)
    assert (got.reward_mean, got.reward_std) == (0.5, 0.5)
    line = closed_group(0, "task", MIXED, got)
    assert [(one.left_out, one.overlong, one.reward) for one in line.members] == [
        (None, False, 1.0),
        (None, False, 0.0),
        ("overlong", True, 0.5),
    ]


def test_zeroed_member_is_trained_with_reward_0() -> None:
    got = assessed(MIXED, overlong="zero")
    wanted = advantages([1.0, 0.0, 0.0]).tolist()
    assert [(row.rollout_id, row.reward, row.advantage) for row in got.rows] == [
        ("good", 1.0, wanted[0]),
        ("bad", 0.0, wanted[1]),
        ("cut", 0.0, wanted[2]),
    ]
    assert (got.overlong, got.cut) == ((), 1)
    line = closed_group(0, "task", MIXED, got)
    assert [(one.left_out, one.overlong, one.reward) for one in line.members][-1] == (None, True, 0.0)


def test_cut_member_counts_as_graded_by_default() -> None:
    got = assessed(MIXED)
    assert [row.reward for row in got.rows] == [1.0, 0.0, 0.5]
    assert (got.overlong, got.cut) == ((), 1)


def test_group_without_a_spread_but_for_cut_members_has_one_where_they_are_zeroed() -> None:
    members = [member("good", 1.0, [True]), cut("cut", 1.0)]
    assert assessed(members).skipped == "no_spread"
    assert assessed(members, overlong="zero").skipped is None


@pytest.mark.parametrize(
    ("members", "skipped"),
    [
        ([cut("a", 1.0), member("b", 0.0, [True])], "overlong"),
        ([cut("a", 1.0), cut("b", 0.0)], "overlong"),
        ([cut("a", 1.0), cut("b", None), cut("c", None)], "too_few_scored"),
        ([cut("a", 1.0), member("b", 0.0, [True]), member("c", 1.0, [True], version=4)], "stale"),
        ([cut("a", 1.0, oldest=4), member("b", 0.0, [True]), member("c", 1.0, [True])], None),
    ],
)
def test_group_that_loses_too_many_is_skipped_for_a_reason(
    members: list[Member], skipped: str | None
) -> None:
    got = assessed(
        [replace(one, oldest=one.oldest or 9) for one in members], max_staleness=1, overlong="exclude"
    )
    assert got.skipped == skipped
    assert set(got.overlong) == {one.rollout_id for one in members if one.overlong and one.reward is not None}
    assert not set(got.overlong) & set(got.stale)


def test_float_rewards_have_a_spread_unless_they_are_equal() -> None:
    third = 1 / 3
    assert assessed([member("a", third, [True]), member("b", third, [True])]).skipped == "no_spread"
    got = assessed([member("a", third, [True]), member("b", -0.2, [True])])
    assert [row.advantage for row in got.rows] == pytest.approx([1, -1], abs=1e-6)


def test_equal_rewards_are_kept_on_demand() -> None:
    members = [member("a", 0.1, [True]), member("b", 0.1, [True]), member("c", 0.1, [True])]
    assert assessed(members).skipped == "no_spread"
    kept = assessed(members, keep_without_spread=True)
    assert [row.advantage for row in kept.rows] == pytest.approx([0, 0, 0], abs=1e-6)


def test_ids_to_train_need_a_version() -> None:
    with pytest.raises(LedgerError, match="rollout 'r' has ids to train and no policy version"):
        member("r", 1.0, [True], version=None)


@pytest.fixture(scope="module")
def trl() -> Any:
    """TRL's module with the rollout worker; its logger wants accelerate's state."""
    pytest.importorskip("trl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "experimental", and whatever its libraries warn of
        from accelerate.state import PartialState
        from trl.experimental.async_grpo import async_rollout_worker

        PartialState(cpu=True)
    return async_rollout_worker


def score(trl: Any, rewards: list[float | None], sequences: list[list[Any]]) -> list[Any]:
    """The samples that TRL's own worker makes of a group with these rewards."""
    worker = object.__new__(trl._AsyncRolloutLoop)
    worker.reward_funcs, worker._env_reward_types = [], []
    worker._provides_rollout_reward, worker.reward_func_names = True, ["rollout"]
    size = len(rewards)
    group = trl.RolloutGroup(
        prompts=[[]] * size,
        reward_kwargs={},
        completions=[[]] * size,
        completions_ids=[[]] * size,
        completions_sequences=sequences,
        tool_call_counts=[0] * size,
        tool_failure_counts=[0] * size,
        model_version=1,
        group_id=0,
        env_rewards=[None] * size,
        rollout_rewards=rewards,
    )
    return asyncio.run(worker._score_group(group))


@settings(deadline=None)
@given(
    st.lists(st.none() | REWARDS, min_size=1, max_size=16).filter(
        lambda all_: any(r is not None for r in all_)
    )
)
def test_advantages_are_those_of_trl(trl: Any, rewards: list[float | None]) -> None:
    sequences = [[trl.TrainingSequence([1], [1], [0.0], "r")] for _ in rewards]
    samples = score(trl, rewards, sequences)
    theirs = [sample.advantage for sample, reward in zip(samples, rewards, strict=True) if reward is not None]
    assert advantages([reward for reward in rewards if reward is not None]).tolist() == theirs


@settings(deadline=None)
@given(groups())
def test_rows_are_those_of_trl(trl: Any, members: list[Member]) -> None:
    got = assessed(members, min_scored=1, keep_without_spread=True)
    sequences = [
        [
            trl.TrainingSequence(
                c.input_ids.tolist(), c.completion_mask.astype(int).tolist(), c.old_log_probs.tolist(), "r"
            )
            for c in m.chains
            if m.reward is not None and c.completion_mask.any()
        ]
        for m in members
    ]
    theirs = score(trl, [m.reward for m in members], sequences) if members else []
    assert len(got.rows) == len(theirs)
    for ours, sample in zip(got.rows, theirs, strict=True):
        assert ours.advantage == sample.advantage
        for name in ("input_ids", "completion_mask", "old_log_probs"):
            mine, other = getattr(ours, name), getattr(sample, name)
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)
