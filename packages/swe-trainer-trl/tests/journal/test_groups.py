"""Groups: TRL's own advantages, and which attempts become rows."""

import asyncio
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swe_core.api.chain import Chain
from swe_core.errors import LedgerError
from swe_trainer_trl.journal.groups import Assessed, Member, advantages, assess, closed_group

REWARDS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-1e6, 1e6))


def chain(mask: list[bool], version: int = 0) -> Chain:
    known, ids = np.array(mask, np.bool_), np.arange(len(mask), dtype=np.int32)
    logprobs, versions = np.where(known, -0.5, 0), np.where(known, version, -1)
    return Chain((0,), ids, known, logprobs.astype(np.float32), versions.astype(np.int32), "start")


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
        made = member(f"r{number}", reward, *masks, version=version if sampled else None)
        members.append(replace(made, overlong=draw(st.booleans()), attempt=9 - number))
    return members


def assessed(members: list[Member], **changed: Any) -> Assessed:
    options = {"update": 9, "max_staleness": 9, "min_scored": 2, "keep_without_spread": False}
    return assess(members, **{**options, **changed})


CUT = [replace(member("whole", 1.0, [True]), attempt=1), replace(member("cut", 1.0, [True]), overlong=True)]
"""Without spread, unless the one that was cut counts as zero."""
SILENT = [replace(member("good", 1.0, [False]), attempt=1), member("bad", 0.0, [False])]


@example(members=CUT, version=9, max_staleness=9, min_scored=2, keep=False, overlong="zero")
@example(members=SILENT, version=9, max_staleness=9, min_scored=2, keep=False, overlong="zero")
@given(
    members=groups(),
    version=st.integers(9, 12),
    max_staleness=st.integers(0, 12),
    min_scored=st.integers(1, 4),
    keep=st.booleans(),
    overlong=st.sampled_from(["grade", "exclude", "zero"]),
)
def test_group_is_rows_or_a_reason(
    members: list[Member], version: int, max_staleness: int, min_scored: int, keep: bool, overlong: Any
) -> None:
    got = assess(
        members,
        update=version,
        max_staleness=max_staleness,
        min_scored=min_scored,
        keep_without_spread=keep,
        overlong=overlong,
    )
    scored = [m for m in members if m.reward is not None]
    whole = [m for m in scored if not (m.overlong and overlong == "exclude")]
    used = [m for m in whole if m.oldest is None or version - m.oldest <= max_staleness]
    given = {m.rollout_id: 0.0 if m.overlong and overlong == "zero" else m.reward for m in used}
    rewards = list(given.values())
    versions = [m.oldest for m in used if m.oldest is not None]
    assert got.stale == tuple(m.rollout_id for m in whole if m not in used)
    assert got.overlong == tuple(m.rollout_id for m in scored if m not in whole)
    assert got.cut == sum(m.overlong for m in scored)
    assert got.rewards == given
    assert got.update == min(versions, default=None)
    assert got.reward_mean == (np.mean(rewards) if rewards else None)
    assert got.reward_std == (np.std(rewards) if rewards else None)

    assert bool(got.rows) == (got.skipped is None)
    expected: list[tuple[Member, int, Chain]] = []
    baseline: dict[str, float] = {}
    if len(used) < min_scored:
        reason = "stale" if len(whole) >= min_scored else "overlong"
        assert got.skipped == (reason if len(scored) >= min_scored else "too_few_scored")
    elif len(set(rewards)) == 1 and not keep:
        assert got.skipped == "no_spread"
    else:
        # Exactly the trainable chains of the members that count, in order.
        baseline = dict(zip(given, advantages(rewards).tolist(), strict=True))
        every = [(m, place, c) for m in used for place, c in enumerate(m.chains)]
        expected = [one for one in every if one[2].completion_mask.any()]
        assert got.skipped == (None if expected else "no_tokens")
    assert got.advantages == (baseline if expected else {})
    line = closed_group(7, "task", members, got)
    assert (line.group, line.task_id, line.skipped) == (7, "task", got.skipped)
    for told, of in zip(line.members, members[::-1], strict=True):  # in the order of attempts
        assert (told.rollout_id, told.overlong) == (of.rollout_id, of.overlong)
        assert told.advantage == (baseline[of.rollout_id] if expected and of in used else None)
        assert told.reward == given.get(of.rollout_id, of.reward)
        why = "no_reward" if of not in scored else "overlong" if of not in whole else "stale"
        assert told.left_out == (None if of in used else why)
    assert len(got.rows) == len(expected)
    for row, (owner, place, source) in zip(got.rows, expected, strict=True):
        name = owner.rollout_id
        assert (row.rollout_id, row.chain, row.cause) == (name, place, source.cause)
        assert (row.advantage, row.reward, row.update) == (baseline[name], given[name], min(versions))
        for array, of, dtype in (
            (row.input_ids, source.input_ids, np.int64),
            (row.completion_mask, source.completion_mask, np.int64),
            (row.old_log_probs, source.old_log_probs, np.float32),
        ):
            assert array.dtype == dtype
            np.testing.assert_array_equal(array, of)


def test_equal_rewards_have_no_spread_whatever_they_are() -> None:
    third = [member(name, 1 / 3, [True]) for name in "abc"]
    assert assessed(third).skipped == "no_spread"
    kept = assessed(third, keep_without_spread=True)
    assert [row.advantage for row in kept.rows] == pytest.approx([0, 0, 0], abs=1e-6)
    spread = assessed([third[0], member("b", -0.2, [True])])
    assert [row.advantage for row in spread.rows] == pytest.approx([1, -1], abs=1e-6)


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
    each = {"prompts": [], "completions": [], "completions_ids": [], "env_rewards": None}
    each |= {"tool_call_counts": 0, "tool_failure_counts": 0}
    group = trl.RolloutGroup(
        **{name: [value] * size for name, value in each.items()}, completions_sequences=sequences,
        reward_kwargs={}, model_version=1, group_id=0, rollout_rewards=rewards,
    )  # fmt: skip
    return asyncio.run(worker._score_group(group))


@settings(deadline=None)
@given(
    st.lists(st.none() | REWARDS, min_size=1, max_size=16).filter(lambda them: them.count(None) < len(them))
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

    def sequence(of: Chain) -> Any:
        mask = of.completion_mask.astype(int).tolist()
        return trl.TrainingSequence(of.input_ids.tolist(), mask, of.old_log_probs.tolist(), "r")

    trained = [[c for c in m.chains if m.reward is not None and c.completion_mask.any()] for m in members]
    sequences = [list(map(sequence, chains)) for chains in trained]
    theirs = score(trl, [m.reward for m in members], sequences) if members else []
    assert len(got.rows) == len(theirs)
    for ours, sample in zip(got.rows, theirs, strict=True):
        assert ours.advantage == sample.advantage
        for name in ("input_ids", "completion_mask", "old_log_probs"):
            mine, other = getattr(ours, name), getattr(sample, name)
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)
