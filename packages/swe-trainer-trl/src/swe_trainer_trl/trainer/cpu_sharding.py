"""FSDP2 without CUDA.

accelerate turns to FSDP only where its processes have accelerators, although FSDP2 of torch works with gloo.
So tests, and laptops, shard weights in the same way as GPUs do.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState


def install() -> None:
    """Let accelerate shard weights over processes on a CPU. With CUDA, change nothing."""
    original = AcceleratorState.__init__
    if torch.cuda.is_available() or hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        plugin = options.get("fsdp_plugin")
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = plugin

    AcceleratorState.__init__ = init
