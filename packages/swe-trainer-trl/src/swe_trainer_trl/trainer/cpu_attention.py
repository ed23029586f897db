"""Attention without CUDA, for training in tests and on laptops: TRL's trainer needs a CUDA kernel otherwise.

Up to TRL 1.15 the kernel is Hugging Face's `flash-attn3`. Transformers' `sdpa` replaces it: it finds the
starts of packed sequences by their position ids. Since 1.16 the trainer packs rows into a tree and calls
`flash_attn_varlen_func`, which `attention` replaces.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from swe_core.errors import ConfigError
from swe_trainer_trl import compat

_log = logging.getLogger(__name__)

_BLOCK = 256
"""Queries whose mask is in memory at a time."""


@cache
def install() -> None:
    """Patch TRL so that new trainers run on the CPU. With CUDA, do nothing.

    The patch is applied once and stays until the process ends.
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
    if hasattr(trainer, "get_peak_flops_per_device"):  # it asks CUDA; None means "unknown"
        trainer.get_peak_flops_per_device = lambda *_: None
    _log.warning(
        "no CUDA device was found: the policy is trained on the CPU, which is slow and for tests and laptops "
        "only"
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
    """Compute FlashAttention's `flash_attn_varlen_func` on any device, for the arguments that TRL uses.

    Args:
        query: [sum of Lq, heads, width].
        key, value: [sum of Lk, heads of keys, width]; several query heads may share a key head.
        cu_seqlens_q, cu_seqlens_k: [segments + 1], the start of each segment, and the end.
        max_seqlen_q, max_seqlen_k: Length of the longest segment; unused.
        softmax_scale: Factor of the scores; None is 1/√width.
        causal: Must be true. The masks are aligned at the end: the last query of a segment sees all its keys.
        window_size: Number of keys to the left of its own that a query sees, -1 for all. The second number
            has no meaning in causal attention.
        softcap: Must be 0.

    Returns:
        [sum of Lq, heads, width].

    Raises:
        ConfigError: The model's attention is not supported.
    """
    if softcap or not causal:
        raise ConfigError(
            "the model's attention caps its scores or looks ahead, which needs TRL's CUDA kernel: train it "
            "on a GPU in 16 bits"
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
    if len(query) == len(key) and not 0 <= window < len(key):
        return _attend(query, key, value, scale)  # torch's kernel for this needs no scores in memory
    found: torch.Tensor = _Blocks.apply(query, key, value, scale, window)
    return found


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute attention with a mask [queries, keys]; None is the causal one."""
    out = scaled_dot_product_attention(
        *(tensor.transpose(0, 1)[None] for tensor in (query, key, value)),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[0].transpose(0, 1)


class _Blocks(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Attention of the last queries to all keys, some queries at a time.

    torch takes a mask here, of queries × keys numbers. For a block of queries it is small, and the backward
    pass makes it again instead of keeping it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        window: int,
    ) -> torch.Tensor:
        """See `torch.autograd.Function`."""
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.window = scale, window
        blocks = _blocks(len(query), len(key), window, query.device)
        return torch.cat(
            [_attend(query[queries], key[keys], value[keys], scale, mask) for queries, keys, mask in blocks]
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """See `torch.autograd.Function`."""
        (grad,) = grads
        query, key, value = ctx.saved_tensors
        sums = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        for queries, keys, mask in _blocks(len(query), len(key), ctx.window, query.device):
            with torch.enable_grad():
                q, k, v = (
                    tensor[where].detach().requires_grad_()
                    for tensor, where in ((query, queries), (key, keys), (value, keys))
                )
                out = _attend(q, k, v, ctx.scale, mask)
            found = torch.autograd.grad(out, (q, k, v), grad[queries])
            for total, where, part in zip(sums, (queries, keys, keys), found, strict=True):
                total[where] += part
        return *sums, None, None


def _blocks(
    queries: int, keys: int, window: int, device: torch.device
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield blocks of queries, the keys that they may see, and which query sees which of these keys."""
    before = keys - queries
    for begin in range(0, queries, _BLOCK):
        end = min(begin + _BLOCK, queries)
        first = max(0, before + begin - window) if window >= 0 else 0
        own = torch.arange(before + begin, before + end, device=device)[:, None]
        seen = torch.arange(first, before + end, device=device)
        mask = seen <= own
        if window >= 0:
            mask &= seen >= own - window
        yield slice(begin, end), slice(first, before + end), mask


class _FlashAttention:
    """Replacement of the kernel's module."""

    flash_attn_varlen_func = staticmethod(attention)


def _with_sdpa(load: Any) -> Any:
    """Wrap the model loader `load` so that it always uses `sdpa`."""

    def load_with_sdpa(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "attn_implementation": "sdpa"})

    return load_with_sdpa


def _model_loader(auto: Any) -> Any:
    """Return a replacement of `AutoModelForCausalLM` for the trainer."""

    class Loader:
        from_pretrained = staticmethod(_with_sdpa(auto.from_pretrained))

    return Loader
