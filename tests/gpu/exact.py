"""Recorded log-probabilities against plain forward passes, for each version that sampled whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from swe_core.api.chain import Chain

from ..training import Training, logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 16
"""Rows of a version that are compared at most."""


class Distance(NamedTuple):
    """Absolute differences of log-probabilities, natural, over all compared ids.

    Args:
        versions: The versions that were compared.
        largest, average: To the weights of the version that an id carries, or of the next one: an id that is
            sampled while weights change may carry the version before.
        first: Average to the weights before training, over versions after the first.
    """

    versions: tuple[int, ...]
    largest: float
    average: float
    first: float


def load(directory: Path, adapter: Path | None = None) -> PreTrainedModel:
    """Return a model in 32 bits on the CPU, with an adapter if one is named."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
    return model


def distance(done: Training, before: Path, *, adapters: bool = False) -> Distance:
    """Compare what the server said of sampled ids with the checkpoints of a training that kept them all.

    Args:
        before: The model before training, which is version 1. Version n is the checkpoint of step n - 1.
        adapters: Whether the checkpoints are adapters of that model.
    """
    of_version: dict[int, list[Chain]] = {}
    for chain in done.chains():
        seen = set(chain.versions[chain.completion_mask].tolist())
        if len(seen) == 1:
            of_version.setdefault(int(seen.pop()), []).append(chain)
    last = len(list((done.out / "checkpoints").glob("checkpoint-*")))

    @cache
    def weights(version: int) -> PreTrainedModel:
        if version == 1:
            return load(before)
        checkpoint = done.out / "checkpoints" / f"checkpoint-{version - 1}"
        return load(before, checkpoint) if adapters else load(checkpoint)

    near: list[np.ndarray] = []
    far: list[np.ndarray] = []
    for version, chains in of_version.items():
        models = [weights(one) for one in range(version, min(version + 1, last + 1) + 1)]
        for chain in chains[:ROWS]:
            near.append(_nearest(models, chain))
            if version > 1:
                far.append(_nearest([weights(1)], chain))
    to_own, to_first = np.concatenate(near), np.concatenate(far or [np.zeros(1)])
    return Distance(
        tuple(sorted(of_version)), float(to_own.max()), float(to_own.mean()), float(to_first.mean())
    )


def _nearest(models: Sequence[PreTrainedModel], chain: Chain) -> np.ndarray:
    recorded = chain.old_log_probs[chain.completion_mask]
    found: np.ndarray = np.min([np.abs(logprobs(model, chain) - recorded) for model in models], axis=0)
    return found
