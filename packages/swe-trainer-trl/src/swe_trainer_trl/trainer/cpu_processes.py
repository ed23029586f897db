"""Several trainer processes without CUDA, for tests and laptops.

accelerate turns to FSDP only where its processes have accelerators, although FSDP2 of torch works with gloo.
It also numbers the CPU as a device, and torch loads no checkpoint onto such a device.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState


def install() -> None:
    """Let accelerate's processes on a CPU shard weights and resume. With CUDA, change nothing."""
    original, place = AcceleratorState.__init__, PartialState.set_device
    if torch.cuda.is_available() or hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        plugin = options.get("fsdp_plugin")
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = plugin

    @wraps(place)
    def set_device(self: Any) -> None:
        place(self)
        if self.device.type == "cpu":
            self.device = torch.device("cpu")

    AcceleratorState.__init__ = init
    PartialState.set_device = set_device
