"""Chain: one row of token ids to train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from swe_core.api.engine import ForkCause

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """One training row: N ids that the engine received and sampled, in this order.

    The ids before a turn's completion are exactly the engine's prompt. TRL's `RolloutSample` takes
    `input_ids` and `completion_mask` as int64 (`.astype(np.int64)`) and `old_log_probs` as it is.

    Args:
        turns: Indices of the turns that this row trains, in order.
        input_ids: int32 [N].
        completion_mask: True for ids that these turns sampled and that have a logprob, bool [N].
        old_log_probs: Natural log-probability of each id under the policy that sampled it, float32 [N];
            0.0 where the mask is False.
        versions: Policy version that sampled each id, int32 [N]; -1 where the mask is False.
        cause: Why the row does not extend another chain.
    """

    turns: tuple[int, ...]
    input_ids: NDArray[np.int32]
    completion_mask: NDArray[np.bool_]
    old_log_probs: NDArray[np.float32]
    versions: NDArray[np.int32]
    cause: ForkCause

    def __len__(self) -> int:
        return len(self.input_ids)
