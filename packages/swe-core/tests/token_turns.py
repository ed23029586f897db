"""Turns with tokens, as an engine that owns its tokens returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swe_core.api.engine import Sampled


def make_sampled(
    prompt: Sequence[int],
    completion: Sequence[int],
    extends: Sampled | None = None,
    *,
    logprobs: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    **fields: Any,
) -> Sampled:
    """Return a turn of these ids, by default with log-probabilities of -0.5 and the policy version 0."""
    count = len(completion)
    how = {"rendered": "bridge", "cause": None} if extends else {"rendered": "full", "cause": "start"}
    return Sampled(
        extends,
        np.array(prompt, np.int32),
        np.array(completion, np.int32),
        np.array([-0.5] * count if logprobs is None else logprobs, np.float32),
        np.array([0] * count if versions is None else versions, np.int32),
        **{**how, **fields},
    )


def all_ids(turn: Sampled | None) -> list[int]:
    if turn is None:
        return []
    return [*all_ids(turn.extends), *turn.prompt_ids.tolist(), *turn.completion_ids.tolist()]
