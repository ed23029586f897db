"""Configurations of models, as their authors published them. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def qwen3(directory: Path, name: str, **changed: Any) -> Path:
    """Write the configuration of a Qwen3 into `directory`.

    Returns:
        The directory of the model.
    """
    from transformers import Qwen3Config

    config = Qwen3Config(**_COMMON | _QWEN3[name] | changed)
    config.save_pretrained(directory / name)
    return directory / name


_COMMON: dict[str, Any] = {
    **{"vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 40_960},
    **{"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"},
}
_NAMES = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings"
_QWEN3: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": dict(zip(_NAMES, (1024, 3072, 28, 16, True), strict=True)),
    "Qwen3-1.7B": dict(zip(_NAMES, (2048, 6144, 28, 16, True), strict=True)),
    "Qwen3-8B": dict(zip(_NAMES, (4096, 12_288, 36, 32, False), strict=True)),
    "Qwen3-32B": dict(zip(_NAMES, (5120, 25_600, 64, 64, False), strict=True)),
}
