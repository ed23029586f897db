"""Weights of the trained ids in an optimizer step.

TRL divides the loss of each micro-batch by the number of its ids and by the number of micro-batches
(`AsyncGRPOTrainer.compute_loss`), so the weight of an id depends on the other rows of its micro-batch. With
one row per micro-batch, a rollout with five chains would have five times the weight, and a token of a short
chain more weight than a token of a long chain.

TRL's loss of an id, `-min(r A, clip(r) A)`, is proportional to the advantage `A`, and clipping depends only
on the sign of `A`. So a factor on the advantage is a factor on the loss, and such factors can undo TRL's
division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Normalize = Literal["rollout", "token"]
"""What has equal weight in a step: each rollout, or each trained id."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a rollout that a step trains in one row.

    Args:
        rollout_id: Id of the rollout.
        tokens: Number of trained ids in the row.
        whole: Number of trained ids in all rows of the rollout, over all steps.
    """

    rollout_id: str
    tokens: int
    whole: int

    def __post_init__(self) -> None:
        if not 0 < self.tokens <= self.whole:
            raise ValueError(
                f"a row of rollout {self.rollout_id!r} trains {self.tokens} of its {self.whole} ids; a row "
                "trains at least one, and no more than its rollout has"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """Weights of one optimizer step.

    Args:
        scales: Factor of the advantages of each micro-batch.
        weights: Rollout id → weight. With "rollout" the weight is 1, or the share of the rollout's ids that
            the step trains. With "token" it is proportional to the number of ids, and 1 on average.
        id_weights: Rollout id → weight of each of its trained ids. The loss of the step is the sum over its
            ids of this weight times TRL's loss of the id with the group's advantage, divided by the number
            of ids. With "token" it is 1.
    """

    scales: tuple[float, ...]
    weights: dict[str, float]
    id_weights: dict[str, float]


def weighted(normalize: Normalize, parts: Sequence[Part], micro_batches: Sequence[float]) -> Step:
    """Return the weights of a step.

    With "rollout" the loss of the step is the mean over rollouts of the mean over each rollout's ids. It
    requires that the advantages of each row are already divided by `Part.whole`. A rollout that spans several
    steps counts in each by its share of ids. With "token" the loss is the mean over all ids.

    Args:
        normalize: What has equal weight.
        parts: All rows of the step.
        micro_batches: The number of ids by which TRL divides each micro-batch.
    """
    tokens: dict[str, float] = {}
    each: dict[str, float] = {}
    for part in parts:
        each[part.rollout_id] = 1 / part.whole if normalize == "rollout" else 1.0
        counts = part.tokens / part.whole if normalize == "rollout" else part.tokens
        tokens[part.rollout_id] = tokens.get(part.rollout_id, 0.0) + counts
    divisor = len(tokens) if normalize == "rollout" else sum(tokens.values())
    taken_back = [ids * len(micro_batches) for ids in micro_batches]
    total = sum(part.tokens for part in parts)
    return Step(
        tuple(factor / divisor for factor in taken_back),
        {rollout: len(tokens) * counts / divisor for rollout, counts in tokens.items()},
        {rollout: total * counts / divisor for rollout, counts in each.items()},
    )
