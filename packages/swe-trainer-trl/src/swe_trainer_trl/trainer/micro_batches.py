"""What a micro-batch of TRL carries to the loss, and what its forward pass gives (TRL 1.16 and newer)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

SHARES = "swe_shares"
"""Key of a micro-batch: float32 [processes, rows], the weight of each trained id of a row, in the order of
TRL's packing. It gets the same factor as the advantages (`swe_trainer_trl.normalization.Step.scales`)."""


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPass:
    """A forward pass of the policy.

    Args:
        inputs: Its arguments.
        log_probs: The log-probability that each position gives the next id, float32 [N], with its graph.
    """

    inputs: Mapping[str, Any]
    log_probs: torch.Tensor


@contextmanager
def forward_passes(model: torch.nn.Module) -> Iterator[list[ForwardPass]]:
    """Collect the forward passes of TRL's model during the block."""
    found: list[ForwardPass] = []

    def after(module: torch.nn.Module, given: Any, inputs: Mapping[str, Any], output: Any) -> None:
        found.append(ForwardPass(inputs, output["log_probs"].flatten()))

    hook = model.register_forward_hook(after, with_kwargs=True)
    try:
        yield found
    finally:
        hook.remove()


def add_shares(loader: Any, share_of: Callable[[object], float]) -> None:
    """Let TRL's data loader add `SHARES` to each micro-batch.

    Args:
        loader: The data loader.
        share_of: Returns the weight of each trained id in the row with an array of ids.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps torch's
    collate = inner.collate_fn

    def with_shares(examples: list[Any]) -> Any:
        batch = collate(examples)
        ranks = [rank.samples for rank in examples[0]]
        shares = torch.zeros(len(ranks), max(map(len, ranks)))
        for rank, samples in enumerate(ranks):
            for place, sample in enumerate(samples):
                shares[rank, place] = share_of(sample["input_ids"])
        batch[SHARES] = shares
        return batch

    inner.collate_fn = with_shares
