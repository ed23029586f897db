"""A finished group: the attempts of one task become training rows, or the reason why there are none.

An attempt without a verdict (an error, or cancelled) is no attempt: it has no reward, so it is neither in the
baseline nor trained. All rows of a group are of the same age, so that TRL, which drops a row whose policy is
too old, drops all of them or none.

The age of a policy counts in updates: how many times the weights had changed that rollouts are sampled from.
The number of a version says that only where a run was never resumed (`Journal.updates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from swe_core.api.chain import Chain
from swe_core.errors import LedgerError

Skipped = Literal["no_spread", "too_few_scored", "stale", "no_tokens"]
"""Why a group is not trained: all rewards are equal; too few attempts have a verdict; too few of those with
one are fresh; no attempt has an id to train."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One finished attempt.

    Args:
        rollout_id: Its rollout.
        attempt: Which attempt of the task it is, from 0.
        reward: Its verdict; None where there is none.
        chains: Its token rows; empty without a verdict.
        oldest: Updates of the oldest policy that sampled any of its ids; None where nothing was sampled.
        newest: Those of the newest one.

    Raises:
        LedgerError: It has ids to train, and no policy version.
    """

    rollout_id: str
    attempt: int
    reward: float | None
    chains: tuple[Chain, ...]
    oldest: int | None
    newest: int | None

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
        rollout_id: The rollout whose chain it is.
        input_ids: int64 [N].
        completion_mask: 1 where an id is trained, int64 [N].
        old_log_probs: Natural log-probability of each id when it was sampled, float32 [N]; 0.0 elsewhere.
        advantage: Of the rollout, the same on all its rows.
        update: Updates of the oldest policy in the whole group.
        reward: Of the rollout.
    """

    rollout_id: str
    input_ids: NDArray[np.int64]
    completion_mask: NDArray[np.int64]
    old_log_probs: NDArray[np.float32]
    advantage: float
    update: int
    reward: float


@dataclass(frozen=True, slots=True, eq=False)
class Assessed:
    """What became of a group: rows, or why there are none; never both.

    Args:
        rows: In the order of the members and of their chains.
        skipped: Why there are none.
        stale: Rollouts with a verdict that were left out, because their policy is too old.
        update: Updates of the oldest policy of the members that count; None where they sampled nothing.
        reward_mean: Over the members that count; None where there are none.
        reward_std: Population standard deviation over the same.
    """

    rows: tuple[Row, ...]
    skipped: Skipped | None
    stale: tuple[str, ...]
    update: int | None
    reward_mean: float | None
    reward_std: float | None


def advantages(rewards: Sequence[float]) -> NDArray[np.float64]:
    """The group-normalised advantage of each reward, float64 [M]: `(r - mean) / (std + 1e-8)`.

    With the population standard deviation. The formula is that of TRL's own rollout worker
    (`trl.experimental.async_grpo`, `_score_group`); the result is the same to the last bit.

    Args:
        rewards: Of the scored attempts, at least one.
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
) -> Assessed:
    """Make the training rows of a finished group.

    A member counts if it has a reward and its oldest id is not past `max_staleness`. Those that count make
    the baseline, also the ones without an id to train; each of their chains with such an id is a row.

    Args:
        members: All attempts of the group.
        update: Updates of the policy now.
        max_staleness: How many updates a policy may be behind.
        min_scored: Members that must count; at least 1.
        keep_without_spread: Whether a group of equal rewards is trained (all its advantages are 0).
    """
    scored = [(member, member.reward) for member in members if member.reward is not None]
    stale = {
        member.rollout_id
        for member, _ in scored
        if member.oldest is not None and update - member.oldest > max_staleness
    }
    used = [(member, reward) for member, reward in scored if member.rollout_id not in stale]
    rewards = [reward for _, reward in used]
    oldest = min((m.oldest for m, _ in used if m.oldest is not None), default=None)

    skipped: Skipped | None = None
    rows: tuple[Row, ...] = ()
    if len(used) < min_scored:
        skipped = "stale" if len(scored) >= min_scored else "too_few_scored"
    elif min(rewards) == max(rewards) and not keep_without_spread:
        skipped = "no_spread"
    elif oldest is not None:
        rows = tuple(
            _row(member.rollout_id, chain, float(advantage), oldest, reward)
            for (member, reward), advantage in zip(used, advantages(rewards), strict=True)
            for chain in member.chains
            if chain.completion_mask.any()
        )
    if not rows and skipped is None:
        skipped = "no_tokens"
    return Assessed(
        rows,
        skipped,
        tuple(member.rollout_id for member, _ in scored if member.rollout_id in stale),
        oldest,
        float(np.mean(rewards)) if rewards else None,
        float(np.std(rewards)) if rewards else None,
    )


def _row(rollout_id: str, chain: Chain, advantage: float, update: int, reward: float) -> Row:
    return Row(
        rollout_id,
        chain.input_ids.astype(np.int64),
        chain.completion_mask.astype(np.int64),
        chain.old_log_probs,
        advantage,
        update,
        reward,
    )
