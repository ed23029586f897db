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
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "architectures": ["Qwen3ForCausalLM"],
    "dtype": "bfloat16",
}
_QWEN3: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "Qwen3-1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Qwen3-32B": {
        "hidden_size": 5120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "tie_word_embeddings": False,
    },
}
