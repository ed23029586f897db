"""The token ledger: every sampled token is trainable in exactly one chain, or dropped for a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from swe_core.api.chain import Chain
from swe_core.api.records import Ledger
from swe_core.errors import LedgerError

if TYPE_CHECKING:
    from swe_core.tokens.chains import Step  # which needs numpy; ledgers are added up without it

NO_LOGPROBS = "no_logprobs"
"""Reason to drop an id without a logprob."""
RETRIED = "retried"
"""Reason to drop the ids of an attempt whose sandbox failed, so that the rollout ran again."""

LOST_NODE = "lost_node"
"""Reason to drop the ids of a try whose node was lost, so that the rollout ran again on another."""


def prove(
    sampled: int, steps: Sequence[Step], chains: Sequence[Chain], no_reward: str | None = None
) -> Ledger:
    """Account for every sampled token of a rollout.

    Args:
        sampled: Number of sampled tokens, counted on arrival.
        no_reward: Why nothing of the rollout is trained ("error", "cancelled", "evaluation"): all trainable
            tokens are dropped for this reason. None where they are trained.

    Raises:
        LedgerError: `sampled` differs from the tokens of the chains and the dropped ones.
    """
    trainable = sum(int(chain.completion_mask.sum()) for chain in chains)
    dropped: Counter[str] = Counter()
    for step in steps:
        if step.dropped is not None:
            dropped[step.dropped] += len(step.completion)
        else:
            dropped[NO_LOGPROBS] += int((~step.trainable).sum())
    if no_reward is not None:
        dropped[no_reward] += trainable
        trainable = 0
    summaries = sum(int(step.trainable.sum()) for step in steps if step.summary and step.dropped is None)
    ledger = Ledger(
        sampled=sampled,
        trainable=trainable,
        summaries=0 if no_reward is not None else summaries,
        dropped={reason: tokens for reason, tokens in dropped.items() if tokens},
        chains=len(chains),
        forks=dict(Counter(chain.cause for chain in chains if chain.cause != "start")),
        rendered=dict(Counter(step.rendered for step in steps)),
    )
    if missing := unaccounted(ledger):
        raise LedgerError(
            f"the token ledger does not balance: {sampled} sampled, but {trainable} trainable and "
            f"{_parts(ledger)} dropped, {missing:+d} unaccounted for"
        )
    return ledger


def unaccounted(ledger: Ledger) -> int:
    """Return the sampled tokens that are neither trainable nor dropped; negative where some count twice."""
    return ledger.sampled - ledger.trainable - sum(ledger.dropped.values())


def add_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """Return the sum of many rollouts' ledgers."""
    total = Ledger(sampled=0, trainable=0)
    for one in ledgers:
        total = Ledger(
            sampled=total.sampled + one.sampled,
            trainable=total.trainable + one.trainable,
            dropped=dict(Counter(total.dropped) + Counter(one.dropped)),
            summaries=total.summaries + one.summaries,
            chains=total.chains + one.chains,
            forks=dict(Counter(total.forks) + Counter(one.forks)),
            rendered=dict(Counter(total.rendered) + Counter(one.rendered)),
        )
    return total


def _parts(ledger: Ledger) -> str:
    return ", ".join(f"{tokens} {reason}" for reason, tokens in ledger.dropped.items()) or "0"
