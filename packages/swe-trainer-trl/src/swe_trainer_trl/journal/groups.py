"""Turns a finished group, the attempts at one task, into training rows or a reason for having none.

An attempt without a verdict (an error, or cancelled) has no reward, so it is neither in the baseline nor
trained. Nor is one that was cut short, if such attempts are excluded: with its reward in the baseline but
without its rows, the advantages of the trained attempts would no longer sum to 0. All rows of a group have
the same age, so that TRL, which drops rows of old policies, drops all of them or none.

The age of a policy is counted in updates: the number of changes of the weights that sample rollouts. After a
resume, the number of a version differs from it (`Journal.updates`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from swe_core.api.chain import Chain
from swe_core.api.engine import ForkCause
from swe_core.errors import LedgerError
from swe_core.rollout.training_records import ClosedGroup, GroupMember
from swe_trainer_trl.overlong import Overlong

Skipped = Literal["no_spread", "too_few_scored", "overlong", "stale", "no_tokens"]
"""Why a group is not trained: equal rewards; too few attempts with a verdict; too few of these were not cut
short; too few of these are fresh; no trainable id."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One finished attempt.

    Args:
        rollout_id: The rollout.
        attempt: Number of the attempt, from 0.
        reward: The reward (`overlong.counted_reward`); None if it counts nowhere.
        chains: The token rows; empty without a verdict.
        oldest: Updates of the oldest policy that sampled an id; None without sampled ids.
        newest: Updates of the newest policy, likewise.
        overlong: Whether it was cut short (`overlong.is_overlong`).

    Raises:
        LedgerError: The attempt has trainable ids but no policy version.
    """

    rollout_id: str
    attempt: int
    reward: float | None
    chains: tuple[Chain, ...]
    oldest: int | None
    newest: int | None
    overlong: bool = False

    def __post_init__(self) -> None:
        if self.oldest is None and any(chain.completion_mask.any() for chain in self.chains):
            raise LedgerError(
                f"rollout {self.rollout_id!r} has ids to train and no policy version; "
                "an engine must say which version sampled each id"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training row, in the types of TRL's `RolloutSample`.

    Args:
        rollout_id: The rollout of the chain.
        input_ids: int64 [N].
        completion_mask: 1 for trained ids, int64 [N].
        old_log_probs: Natural log-probability of each sampled id, float32 [N]; 0.0 elsewhere.
        advantage: Advantage of the rollout, the same on all its rows.
        update: Updates of the oldest policy in the group.
        reward: Reward of the rollout in its group.
        chain: Index of the chain in the rollout.
        cause: Why the chain began.
    """

    rollout_id: str
    input_ids: NDArray[np.int64]
    completion_mask: NDArray[np.int64]
    old_log_probs: NDArray[np.float32]
    advantage: float
    update: int
    reward: float
    chain: int
    cause: ForkCause


@dataclass(frozen=True, slots=True, eq=False)
class Assessed:
    """The result of a group: either rows, or a reason for having none.

    Args:
        rows: Rows in the order of the members and of their chains.
        skipped: The reason.
        stale: Rollouts with a verdict, not `overlong`, whose policy is too old to count.
        update: Updates of the oldest policy of the counting members; None without sampled ids.
        reward_mean: Mean over the counting members; None without any.
        reward_std: Population standard deviation over the same members.
        advantages: Rollout → advantage of each counting member; empty for a skipped group.
        rewards: Rollout → reward of each counting member in the group.
        overlong: Rollouts with a verdict that are excluded because they were cut short.
        cut: Number of rollouts with a verdict that were cut short, excluded or not.
    """

    rows: tuple[Row, ...]
    skipped: Skipped | None
    stale: tuple[str, ...]
    update: int | None
    reward_mean: float | None
    reward_std: float | None
    advantages: Mapping[str, float] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    overlong: tuple[str, ...] = ()
    cut: int = 0


def advantages(rewards: Sequence[float]) -> NDArray[np.float64]:
    """Return the group-normalised advantage of each reward, float64 [M]: `(r - mean) / (std + 1e-8)`.

    `std` is the population standard deviation. The formula is that of TRL's rollout worker
    (`trl.experimental.async_grpo`, `_score_group`), and the result is identical to the last bit.

    Args:
        rewards: Rewards of the scored attempts, at least one.
    """
    scored = np.array(rewards, np.float64)
    return np.asarray((scored - scored.mean()) / (scored.std() + 1e-8))


def assess(
    members: Sequence[Member],
    *,
    update: int,
    max_staleness: int,
    min_scored: int,
    keep_without_spread: bool,
    overlong: Overlong = "grade",
) -> Assessed:
    """Return the training rows of a finished group.

    A member counts if it has a reward, is not excluded and its oldest id is within `max_staleness`. Counting
    members form the baseline, also those without a trainable id; each of their chains with a trainable id is
    a row.

    Args:
        members: All attempts of the group.
        update: Updates of the current policy.
        max_staleness: Number of updates that a policy may be behind.
        min_scored: Required number of counting members, at least 1.
        keep_without_spread: Whether a group with equal rewards is trained (all its advantages are 0).
        overlong: What becomes of the members that were cut short.
    """
    scored = [
        (member, 0.0 if member.overlong and overlong == "zero" else member.reward)
        for member in members
        if member.reward is not None
    ]
    whole = [one for one in scored if not (one[0].overlong and overlong == "exclude")]
    used = [one for one in whole if one[0].oldest is None or update - one[0].oldest <= max_staleness]
    names = [[member.rollout_id for member, _ in some] for some in (scored, whole, used)]
    rewards = [reward for _, reward in used]
    oldest = min((m.oldest for m, _ in used if m.oldest is not None), default=None)

    skipped: Skipped | None = None
    rows: tuple[Row, ...] = ()
    given: dict[str, float] = {}
    if len(used) < min_scored:
        enough = [len(one) >= min_scored for one in (scored, whole)]
        skipped = "stale" if all(enough) else "overlong" if enough[0] else "too_few_scored"
    elif min(rewards) == max(rewards) and not keep_without_spread:
        skipped = "no_spread"
    elif oldest is not None:
        given = dict(zip(names[2], map(float, advantages(rewards)), strict=True))
        rows = tuple(
            _row(member.rollout_id, chain, given[member.rollout_id], oldest, reward, place)
            for member, reward in used
            for place, chain in enumerate(member.chains)
            if chain.completion_mask.any()
        )
    if not rows and skipped is None:
        skipped = "no_tokens"
    return Assessed(
        rows,
        skipped,
        tuple(name for name in names[1] if name not in names[2]),
        oldest,
        float(np.mean(rewards)) if rewards else None,
        float(np.std(rewards)) if rewards else None,
        given if rows else {},
        dict(zip(names[2], rewards, strict=True)),
        tuple(name for name in names[0] if name not in names[1]),
        sum(member.overlong for member, _ in scored),
    )


def closed_group(group: int, task_id: str, members: Sequence[Member], assessed: Assessed) -> ClosedGroup:
    """Return the line of `groups.jsonl` for a finished group, its attempts in order."""

    def left_out(member: Member) -> str | None:
        if member.reward is None:
            return "no_reward"
        if member.rollout_id in assessed.overlong:
            return "overlong"
        return "stale" if member.rollout_id in assessed.stale else None

    return ClosedGroup(
        group=group,
        task_id=task_id,
        members=tuple(
            GroupMember(
                rollout_id=member.rollout_id,
                reward=assessed.rewards.get(member.rollout_id, member.reward),
                advantage=assessed.advantages.get(member.rollout_id),
                left_out=left_out(member),
                overlong=member.overlong,
            )
            for member in sorted(members, key=lambda member: member.attempt)
        ),
        skipped=assessed.skipped,
    )


def _row(rollout_id: str, chain: Chain, advantage: float, update: int, reward: float, place: int) -> Row:
    return Row(
        rollout_id,
        chain.input_ids.astype(np.int64),
        chain.completion_mask.astype(np.int64),
        chain.old_log_probs,
        advantage,
        update,
        reward,
        place,
        chain.cause,
    )
