"""How much each trained id counts in an optimizer step.

TRL divides the loss of each micro-batch by that micro-batch's own ids and by the number of micro-batches
(`AsyncGRPOTrainer.compute_loss`), so how much an id counts depends on the rows beside it. A rollout that is
cut into five chains would count five times where each row is a micro-batch, and a token of a short chain more
than one of a long chain.

Its loss of an id, `-min(r A, clip(r) A)`, grows in proportion to the advantage `A`, and what is clipped
depends on the sign of `A` alone. So an advantage that is multiplied by a weight is a loss that is multiplied
by it, and TRL's own division can be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Normalize = Literal["rollout", "token"]
"""What counts alike in a step: each rollout, or each trained id."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a step trains of one rollout in one row.

    Args:
        rollout_id: The rollout.
        tokens: Trained ids of the row.
        whole: Trained ids of the rollout, in all of its rows, whichever steps they are in.
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
    """How the ids of one optimizer step are weighted.

    Args:
        scales: What the advantages of each micro-batch are multiplied by.
        weights: How much each rollout counts, by its id. With "rollout" it is 1, or the share of its ids that
            the step trains; with "token" it is in proportion to its ids, and 1 on average.
    """

    scales: tuple[float, ...]
    weights: dict[str, float]


def weighted(normalize: Normalize, parts: Sequence[Part], micro_batches: Sequence[float]) -> Step:
    """The weights of a step.

    With "rollout" the step's loss is the mean over its rollouts of the mean over the rollout's ids, where the
    advantages of each row come divided by `Part.whole`; a rollout that several steps share counts in each by
    its share of ids. With "token" it is the sum over all ids divided by their number.

    Args:
        parts: All rows of the step.
        micro_batches: How many ids TRL divides each micro-batch by.
    """
    tokens: dict[str, float] = {}
    for part in parts:
        counts = part.tokens / part.whole if normalize == "rollout" else part.tokens
        tokens[part.rollout_id] = tokens.get(part.rollout_id, 0.0) + counts
    divisor = len(tokens) if normalize == "rollout" else sum(tokens.values())
    taken_back = [ids * len(micro_batches) for ids in micro_batches]
    return Step(
        tuple(factor / divisor for factor in taken_back),
        {rollout: len(tokens) * counts / divisor for rollout, counts in tokens.items()},
    )
