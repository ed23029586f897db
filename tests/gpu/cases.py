"""What `memory` trains. It imports nothing heavy: whoever lists the cases must not take a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A training.

    Args:
        model: One of the published models, whose shape is taken.
        tokens: Of a forward pass, `grpo.token_budget`.
        grpo: More of `[worker.trl.grpo]`.
        settings: More of `[worker.trl]`.
    """

    model: str
    tokens: int
    grpo: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


CASES: Mapping[str, Case] = {
    "0.6B": Case("Qwen3-0.6B", 16_384),
    "0.6B, activations kept": Case("Qwen3-0.6B", 8192, {"gradient_checkpointing": False}),
    "0.6B, 32 bits": Case("Qwen3-0.6B", 8192, {"bf16": False}),
    "0.6B, KL term": Case("Qwen3-0.6B", 16_384, settings={"loss": {"beta": 0.001}}),
    "1.7B": Case("Qwen3-1.7B", 16_384),
    "1.7B, FSDP2": Case("Qwen3-1.7B", 16_384, settings={"sharding": "fsdp", "processes": 1}),
    "8B, adapter": Case(
        "Qwen3-8B",
        32_768,
        {"model_init_kwargs": {"dtype": "bfloat16"}},
        {"lora": {"r": 32, "lora_alpha": 64, "target_modules": "all-linear"}},
    ),
}
"""Unless a case says otherwise, weights have 32 bits, a pass 16, and activations are computed again."""
