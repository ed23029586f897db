"""A tiny random Qwen3 with its tokenizer, made without a download.

Its tokens and logprobs are as real as a large model's; its text means nothing. Most replies end by themselves
after some dozens of tokens.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

MAX_POSITIONS = 131_072
"""Tokens of the model's context."""

_SEED = 20
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def make_tiny_model(directory: Path, *, ends: bool = True, **shape: Any) -> Path:
    """Write a random Qwen3 and its tokenizer into `directory`.

    The model has about 270,000 parameters, float32, embeddings untied; the byte-level tokenizer has Qwen3's
    special tokens and chat template. The same versions of Python and of the libraries give the same model.

    Args:
        ends: Whether replies end by themselves, or hardly ever.
        **shape: Other values of `Qwen3Config`, such as `hidden_size`, for a larger model.

    Returns:
        `directory`.

    Raises:
        ImportError: torch, transformers or trl (whose copy of the template it is) is not installed.
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    template = files("trl") / "chat_templates" / "qwen3.jinja"
    tokenizer = make_tokenizer(
        QWEN3_TOKENS,
        chat_template=template.read_text(encoding="utf-8"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    shape = {**_TINY, **shape}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        **shape,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,  # vLLM on CPU does not refresh a tied head when weights are reloaded
        # So that what comes next depends on what came before, and no more in a wide model than in this one.
        initializer_range=0.2 * (_TINY["hidden_size"] / shape["hidden_size"]) ** 0.5,
        eos_token_id=end,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[end] *= 3 if ends else 0  # three times: likely after some contexts
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
