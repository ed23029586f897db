"""The split of GPUs between server and trainer.

It must happen before TRL is imported: the import asks CUDA for its devices, and later changes of
CUDA_VISIBLE_DEVICES have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from swe_core.errors import ConfigError

_SERVER = "worker.trl.server"


class GPULayout(NamedTuple):
    """The GPUs of server and trainer, as names in CUDA_VISIBLE_DEVICES; both empty without CUDA."""

    server: tuple[str, ...]
    trainer: tuple[str, ...]

    @property
    def shared(self) -> bool:
        """Return whether both use one GPU."""
        return bool(set(self.server) & set(self.trainer))


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as names in CUDA_VISIBLE_DEVICES.

    With NVML this does not initialise CUDA, so CUDA_VISIBLE_DEVICES may still change afterwards.
    """
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(one) for one in range(count)] if named is None else named.split(",")
    return tuple(name.strip() for name in names[:count])


def layout(visible: Sequence[str], wanted: str | None, nccl: bool) -> GPULayout:
    """Split the GPUs between server and trainer, which is one process on one GPU.

    Args:
        visible: All visible GPUs.
        wanted: `worker.trl.server.gpus`. By default the server gets all but the first, reduced to a power of
            two, because it splits the attention heads among them. A single GPU is shared.
        nccl: Whether weights go through NCCL, which refuses two ranks on one GPU.

    Raises:
        ConfigError: A wanted GPU does not exist, or no GPU is left for the trainer with NCCL.
    """
    if wanted is None:
        others = len(visible) - 1
        server = tuple(visible[1 : 1 + (1 << others.bit_length() - 1)]) if others > 0 else tuple(visible)
    else:
        server = tuple(name.strip() for name in wanted.split(","))
        for number, name in enumerate(server):
            if name not in visible or name in server[:number]:
                there = ", ".join(visible) or "none"
                raise ConfigError(
                    f"{_SERVER}.gpus is {wanted!r}, but must name GPUs that exist ({there}), each once"
                )
    left = [name for name in visible if name not in server]
    if nccl and not left:
        raise ConfigError(
            f"weights go to vLLM through NCCL, which needs a GPU for the trainer besides the server's, and "
            f"none of {len(visible)} is left: train an adapter ([worker.trl.lora]) or set "
            "worker.trl.weight_sync to 'disk'"
        )
    return GPULayout(server, tuple(left[:1]) or server[:1])


@contextmanager
def devices(names: tuple[str, ...]) -> Iterator[None]:
    """Restrict this process to these GPUs; without names, change nothing."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        elif names:
            del os.environ["CUDA_VISIBLE_DEVICES"]
