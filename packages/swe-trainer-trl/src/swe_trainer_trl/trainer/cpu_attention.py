"""Training without CUDA, for tests and laptops: TRL's trainer wants a CUDA kernel for its attention.

Up to TRL 1.15 the kernel is Hugging Face's `flash-attn3`, for which transformers' `sdpa` stands in: it reads
from the position ids where a packed sequence begins. Since 1.16 the trainer packs rows into a tree and calls
`flash_attn_varlen_func`, for which `attention` here stands in.
"""

from __future__ import annotations

import logging
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from swe_core.errors import ConfigError
from swe_trainer_trl import compat

_log = logging.getLogger(__name__)


@cache
def install() -> None:
    """Let trainers that are made from now on run on this machine's CPU; with CUDA, do nothing.

    It changes TRL in this process, for good, once.
    """
    if torch.cuda.is_available():
        return
    trainer = compat.trainer_module
    if compat.packing_module is not None:
        compat.packing_module._flash_attn = lambda: _FlashAttention
    elif hasattr(trainer, "create_model_from_path"):
        trainer.create_model_from_path = _with_sdpa(trainer.create_model_from_path)
    else:  # up to 1.12
        trainer.AutoModelForCausalLM = _model_loader(trainer.AutoModelForCausalLM)
    if hasattr(trainer, "get_peak_flops_per_device"):  # it asks CUDA, and takes None for "not known"
        trainer.get_peak_flops_per_device = lambda *_: None
    _log.warning(
        "no CUDA device was found: the policy is trained on the CPU with plain attention, which is for tests "
        "and laptops and as slow as that"
    )


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """What FlashAttention's `flash_attn_varlen_func` computes, as far as TRL asks for it, by any device.

    Args:
        query: [sum of Lq, heads, width].
        key, value: [sum of Lk, heads of keys, width]; several heads of the query may share one.
        cu_seqlens_q, cu_seqlens_k: [segments + 1], where each segment begins, and the end.
        max_seqlen_q, max_seqlen_k: The longest segment, which is not needed here.
        softmax_scale: What scores are multiplied by; None is 1/√width.
        causal: Must be true. The masks are aligned at the end: the last query of a segment sees all its keys.
        window_size: Keys to the left of its own that a query sees, of which -1 is all, and a number without
            meaning where attention is causal.
        softcap: Must be 0.

    Returns:
        [sum of Lq, heads, width].

    Raises:
        ConfigError: The model's attention has something that is not done here.
    """
    if softcap or not causal:
        raise ConfigError(
            "the model's attention caps its scores or looks ahead, which training without CUDA does not do: "
            "train it on a GPU"
        )
    segments = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    return torch.cat(
        [
            _segment(query[q:q_end], key[k:k_end], value[k:k_end], softmax_scale, window_size[0])
            for (q, q_end), (k, k_end) in segments
        ]
    )


def _segment(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, window: int
) -> torch.Tensor:
    queries, keys = len(query), len(key)
    mask = None
    if queries != keys or 0 <= window < keys:
        own = torch.arange(keys - queries, keys, device=query.device)[:, None]
        seen = torch.arange(keys, device=query.device)
        mask = seen <= own
        if window >= 0:
            mask &= seen >= own - window
    out = scaled_dot_product_attention(
        *(tensor.transpose(0, 1)[None] for tensor in (query, key, value)),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


class _FlashAttention:
    """What TRL takes for the module of the kernel."""

    flash_attn_varlen_func = staticmethod(attention)


def _with_sdpa(load: Any) -> Any:
    """`load`, which makes a model, with another attention than it is told."""

    def load_with_sdpa(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "attn_implementation": "sdpa"})

    return load_with_sdpa


def _model_loader(auto: Any) -> Any:
    """What the trainer takes for `AutoModelForCausalLM`."""

    class Loader:
        from_pretrained = staticmethod(_with_sdpa(auto.from_pretrained))

    return Loader
