"""Attention on CUDA where TRL's kernel cannot be had.

Since 1.16 TRL takes FlashAttention 3 from the package `kernels`, which loads it from the directory that
LOCAL_KERNELS names, or from the Hub (with HF_HUB_OFFLINE=1 from the Hub's cache). Elsewhere torch's own
FlashAttention 2 replaces it. Both compute in 16 bits only, so `cpu_attention.attention` computes in 32.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from swe_core.errors import ConfigError, sentence
from swe_trainer_trl import compat
from swe_trainer_trl.trainer.cpu_attention import attention

_log = logging.getLogger(__name__)

Attention = Callable[..., Any]
"""A function like FlashAttention's `flash_attn_varlen_func`."""


@cache
def install() -> None:
    """Patch TRL so that new trainers find an attention. Without CUDA, and before TRL 1.16, do nothing.

    The patch is applied once and stays until the process ends.
    """
    if torch.cuda.is_available() and compat.packing_module is not None:
        chosen = _Chosen(compat.packing_module._flash_attn)
        compat.packing_module._flash_attn = lambda: chosen


def kernel(load: Callable[[], Any]) -> Attention:
    """Return the attention for 16 bits: that of TRL's kernel, or torch's with a warning.

    Args:
        load: Loads the kernel's module.
    """
    try:
        found: Attention = load().flash_attn_varlen_func
    except Exception as error:  # the boundary to the Hub, and to a binary that may not fit this machine
        _log.warning(
            "TRL's attention kernel cannot be loaded (%s): torch's own attention replaces it, which may be "
            "slower; install the package kernels, and make the Hub reachable or set LOCAL_KERNELS",
            sentence(error),
        )
        return torch_attention()
    return found


def torch_attention() -> Attention:
    """Return torch's FlashAttention 2 as `flash_attn_varlen_func`; before torch 2.11, `by_segments`."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return by_segments
    known = inspect.signature(varlen_attn).parameters
    if not known.keys() >= {"scale", "window_size"}:
        return by_segments
    if "enable_gqa" in known:
        return partial(_varlen, varlen_attn)
    # torch 2.11 lets query heads share a key head without being told.
    return partial(_varlen, lambda *given, enable_gqa, **more: varlen_attn(*given, **more))


def by_segments(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **more: Any) -> Any:
    """Compute `cpu_attention.attention`, whose arguments these are, with a key head for each query head.

    With fewer key heads torch has no kernel for 32 bits on CUDA that keeps memory linear in the length.
    """
    shared = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    return attention(query, key, value, *args, **more)


class _Chosen:
    """Replacement of the kernel's module. The kernel is loaded when 16 bits are first asked for."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._kernel = cache(lambda: kernel(load))

    def flash_attn_varlen_func(self, query: torch.Tensor, *args: Any, **more: Any) -> Any:
        return (by_segments if query.dtype == torch.float32 else self._kernel())(query, *args, **more)


def _varlen(
    varlen_attn: Attention,
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
) -> Any:
    """Call torch's `varlen_attn` with the arguments of `flash_attn_varlen_func`; see `attention`."""
    if softcap or not causal:
        raise ConfigError(
            "the model's attention caps its scores or looks ahead, which torch's attention does not do: "
            "install the package kernels, and make the Hub reachable or set LOCAL_KERNELS"
        )
    return varlen_attn(
        query,
        key,
        value,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale=softmax_scale,
        window_size=(window_size[0], 0),  # none to the right is causal, aligned at the end
        enable_gqa=query.shape[1] != key.shape[1],
    )
