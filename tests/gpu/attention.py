"""The trainer's attention on this machine, against the same in 64 bits on the CPU.

python -m tests.gpu.attention [--cpu]

Prints one JSON object: by kind, the largest relative error of outputs and gradients, and the time of a
forward and backward pass over 8 rows of 2,048 ids, and over a tree of as many: 2,048 ids from which 4 rows
branch off (16 heads, 8 of keys, of width 128). On the CPU only the attention in 32 bits runs, without times.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from swe_core.errors import sentence
from swe_trainer_trl import compat
from swe_trainer_trl.trainer import cpu_attention, cuda_attention

SEGMENTS = ((1, 0), (17, 0), (64, 0), (33, 50), (5, 128))
"""Queries, and keys before them, of the segments that are compared."""
WINDOW = 40
APART, TREE = ((2048, 0),) * 8, ((2048, 0), *((3584, 2048),) * 4)
"""The same of what is timed."""
TIMES = 5

Attention = Callable[..., Any]


def error(attention: Attention, dtype: torch.dtype, device: str, window: int = -1) -> float:
    """Return the largest difference in an output or gradient, to the largest value of that tensor."""
    # Rounded first, so that the reference has the same numbers.
    inputs = [one.to(torch.bfloat16) for one in _inputs(SEGMENTS, heads=(8, 2), width=64)]
    exact = [one.to(torch.float64) for one in inputs]
    given = [one.to(device, dtype) for one in inputs]
    expected = _results(cpu_attention.attention, exact, SEGMENTS, window)
    got = _results(attention, given, SEGMENTS, window)
    return max(
        float((mine.cpu().double() - theirs).abs().max() / theirs.abs().max())
        for mine, theirs in zip(got, expected, strict=True)
    )


def milliseconds(attention: Attention, dtype: torch.dtype, segments: Sequence[tuple[int, int]]) -> float:
    """Return the time of one forward and backward pass on the GPU."""
    given = [one.to("cuda", dtype) for one in _inputs(segments, heads=(16, 8), width=128)]
    _results(attention, given, segments, -1)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMES):
        _results(attention, given, segments, -1)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin) / TIMES


def _inputs(segments: Sequence[tuple[int, int]], heads: tuple[int, int], width: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    queries, keys = sum(own for own, _ in segments), sum(own + before for own, before in segments)
    shapes = [(queries, heads[0], width), (keys, heads[1], width), (keys, heads[1], width)]
    return [torch.randn(shape, generator=draw) for shape in shapes]


def _results(
    attention: Attention, inputs: Sequence[torch.Tensor], segments: Sequence[tuple[int, int]], window: int
) -> list[torch.Tensor]:
    """Return the output and the gradients of query, key and value."""
    given = [one.detach().requires_grad_() for one in inputs]
    queries, keys = [own for own, _ in segments], [own + before for own, before in segments]
    ends = [
        torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=given[0].device)
        for sizes in (queries, keys)
    ]
    out = attention(
        *given, *ends, max(queries), max(keys), softmax_scale=0.1, causal=True,
        window_size=(window, 0) if window >= 0 else (-1, -1),
    )  # fmt: skip
    out = out[0] if isinstance(out, tuple) else out  # FlashAttention 3 may add the scores' sums
    return [out.detach(), *torch.autograd.grad(out.sum(), given)]


def main(cpu: bool) -> None:
    kinds: dict[str, tuple[Attention, torch.dtype]] = {"32": (cuda_attention.by_segments, torch.float32)}
    found: dict[str, Any] = {}
    if not cpu:
        kinds["torch"] = (cuda_attention.torch_attention(), torch.bfloat16)
        try:
            kinds["kernel"] = (compat.packing_module._flash_attn().flash_attn_varlen_func, torch.bfloat16)
        except Exception as reason:  # whatever the Hub's client or the binary raises
            found["no_kernel"] = sentence(reason)
    for name, (attention, dtype) in kinds.items():
        device = "cpu" if cpu else "cuda"
        found[f"{name}_error"] = max(error(attention, dtype, device, window) for window in (-1, WINDOW))
        if not cpu:
            found[f"{name}_ms"] = milliseconds(attention, dtype, APART)
            found[f"{name}_tree_ms"] = milliseconds(attention, dtype, TREE)
    print(json.dumps(found))


if __name__ == "__main__":
    main("--cpu" in sys.argv)
