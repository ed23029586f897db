"""The split of GPUs between vLLM's replicas and the trainer's processes.

It must happen before TRL is imported: the import asks CUDA for its devices, and later changes of
CUDA_VISIBLE_DEVICES have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from swe_core.errors import ConfigError
from swe_core.system.plural import counted
from swe_trainer_trl.config import ServerOptions

_SERVER = "worker.trl.server"
_PROCESSES = "worker.trl.processes"


@dataclass(frozen=True, slots=True)
class GPULayout:
    """Who uses which GPU. GPUs are names in CUDA_VISIBLE_DEVICES.

    Args:
        servers: GPUs of each replica of vLLM; `()` for a replica on the CPU. Empty if this process starts no
            server.
        trainers: One GPU for each trainer process; empty without CUDA.
        idle: Unused GPU → the reason, as the rest of a sentence.
    """

    servers: tuple[tuple[str, ...], ...]
    trainers: tuple[str, ...]
    idle: Mapping[str, str] = field(default_factory=dict)

    @property
    def server(self) -> tuple[str, ...]:
        """Return the GPUs of the first replica."""
        return self.servers[0] if self.servers else ()

    @property
    def trainer(self) -> tuple[str, ...]:
        """Return the GPU of the first trainer process."""
        return self.trainers[:1]

    @property
    def shared(self) -> bool:
        """Return whether a GPU belongs to a replica and to a trainer process."""
        return any(name in self.trainers for names in self.servers for name in names)


@dataclass(frozen=True, slots=True)
class Demand:
    """The least that a model needs.

    Args:
        trainers: GPUs that hold what is trained.
        tensor_parallel: GPUs that hold the weights and the KV cache of one context; a power of two.
        heads: Attention heads, which tensor parallelism divides; None if unknown.
        kv_heads: Heads of keys and values; None if unknown.
    """

    trainers: int = 1
    tensor_parallel: int = 1
    heads: int | None = None
    kv_heads: int | None = None


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as names in CUDA_VISIBLE_DEVICES.

    With NVML this does not initialise CUDA, so CUDA_VISIBLE_DEVICES may still change afterwards.
    """
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(one) for one in range(count)] if named is None else named.split(",")
    return tuple(name.strip() for name in names[:count])


def layout(
    visible: Sequence[str],
    options: ServerOptions,
    *,
    nccl: bool,
    processes: int | None = None,
    demand: Demand | None = None,
) -> GPULayout:
    """Split the GPUs between replicas of vLLM and trainer processes.

    The trainer gets the fewest GPUs that hold what it trains, and the replicas get the rest, because rollouts
    of agents wait for sampling most of the time. A single GPU is shared.

    Args:
        visible: All visible GPUs.
        options: `[worker.trl.server]`.
        nccl: Whether weights go through NCCL, which refuses two ranks on one GPU.
        processes: `worker.trl.processes`.
        demand: What the model needs; None if unknown.

    Raises:
        ConfigError: A wanted GPU does not exist, there are too few GPUs for the replicas and processes, the
            model's heads cannot be divided, or no GPU is left for the trainer with NCCL.
    """
    demand = demand or Demand()
    _check_heads(options.tensor_parallel, demand)
    wanted = _wanted(visible, options)
    others = [name for name in visible if wanted is None or name not in wanted]
    if nccl and (not others or len(visible) < 2):
        raise ConfigError(
            f"weights go to vLLM through NCCL, which needs a GPU for the trainer besides the server's, and "
            f"none of {len(visible)} is left: train an adapter ([worker.trl.lora]) or set "
            "worker.trl.weight_sync to 'disk'"
        )
    if not visible:
        if (options.tensor_parallel or 1) > 1:
            raise ConfigError(f"{_SERVER}.tensor_parallel needs GPUs, and there are none: leave it out")
        return GPULayout(((),) * (options.replicas or 1), ())
    if len(visible) == 1 or not others:
        return _shared(wanted or list(visible), options, processes, demand)
    replicas, size = options.replicas or 1, options.tensor_parallel or 1
    if wanted is None:
        _check_room(len(visible), processes or 1, replicas, size)
        room = len(visible) - replicas * max(size, demand.tensor_parallel)
    else:
        room = len(others)
        if room < (processes or 1):
            raise ConfigError(
                f"{_PROCESSES} is {processes}, but {_SERVER}.gpus leaves {counted(room, 'GPU')} for the "
                "trainer: lower the first, or name fewer GPUs"
            )
    count = processes or max(1, min(demand.trainers, room))
    trainers, rest = others[:count], others[count:]
    servers, unused = _replicas(rest if wanted is None else wanted, options, demand)
    idle = dict(unused)
    if wanted is not None:
        idle |= dict.fromkeys(rest, f"{_SERVER}.gpus does not name it, and the trainer needs no more")
    return GPULayout(servers, tuple(trainers), idle)


def without_server(visible: Sequence[str], processes: int | None, demand: Demand | None = None) -> GPULayout:
    """Return the layout of a training whose servers the user has started.

    Raises:
        ConfigError: There are fewer GPUs than processes.
    """
    _check_processes(processes, visible)
    count = processes or min((demand or Demand()).trainers, len(visible))
    why = "the trainer needs no more, and the servers of --engine-url have GPUs of their own"
    return GPULayout((), tuple(visible[:count]), dict.fromkeys(visible[count:], why))


def _check_room(visible: int, processes: int, replicas: int, size: int) -> None:
    if processes + replicas * size > visible:
        raise ConfigError(
            f"{counted(processes, 'trainer process', 'trainer processes')} ({_PROCESSES}) and "
            f"{counted(replicas, 'replica')} ({_SERVER}.replicas) of {counted(size, 'GPU')} "
            f"({_SERVER}.tensor_parallel) take {processes + replicas * size} GPUs, but there are {visible}: "
            "lower one of them"
        )


def _shared(names: list[str], options: ServerOptions, processes: int | None, demand: Demand) -> GPULayout:
    """Return the layout in which the trainer uses GPUs of the replicas, after those that no replica uses."""
    _check_processes(processes, names)
    servers, unused = _replicas(names, options, demand)
    trainers = sorted(names, key=lambda name: name not in unused)[: processes or 1]
    return GPULayout(
        servers, tuple(trainers), {name: unused[name] for name in unused if name not in trainers}
    )


def _check_processes(processes: int | None, names: Sequence[str]) -> None:
    if names and (processes or 1) > len(names):
        raise ConfigError(
            f"{_PROCESSES} is {processes}, but there {'is' if len(names) == 1 else 'are'} "
            f"{counted(len(names), 'GPU')}, and each process needs its own: lower it"
        )


def _wanted(visible: Sequence[str], options: ServerOptions) -> list[str] | None:
    """Return the GPUs of `worker.trl.server.gpus`; None if it is unset.

    Raises:
        ConfigError: A GPU does not exist or is named twice, or replicas differ in size.
    """
    if options.gpus is None:
        return None
    groups = [[name.strip() for name in group.split(",")] for group in options.gpus.split(";")]
    names = [name for group in groups for name in group]
    for number, name in enumerate(names):
        if name not in visible or name in names[:number]:
            there = ", ".join(visible) or "none"
            raise ConfigError(
                f"{_SERVER}.gpus is {options.gpus!r}, but must name GPUs that exist ({there}), each once"
            )
    if len(groups) > 1:
        size = len(groups[0])
        if any(len(group) != size for group in groups):
            raise ConfigError(
                f"{_SERVER}.gpus is {options.gpus!r}, but each replica must have the same number of GPUs"
            )
        for name, value, given in (
            ("replicas", len(groups), options.replicas),
            ("tensor_parallel", size, options.tensor_parallel),
        ):
            if given not in (None, value):
                raise ConfigError(
                    f"{_SERVER}.gpus is {options.gpus!r}, which is {counted(len(groups), 'replica')} of "
                    f"{counted(size, 'GPU')}, but {_SERVER}.{name} is {given}: leave that out"
                )
    return names


def _replicas(
    names: Sequence[str], options: ServerOptions, demand: Demand
) -> tuple[tuple[tuple[str, ...], ...], dict[str, str]]:
    """Cut GPUs into replicas.

    Returns:
        The GPUs of each replica, and the GPUs that are left, each with the reason.

    Raises:
        ConfigError: There are too few GPUs, or the model's heads cannot be divided among those of a replica.
    """
    size, count = options.tensor_parallel, options.replicas
    if options.gpus is not None and ";" in options.gpus:
        count = options.gpus.count(";") + 1
        size = len(names) // count
        _check_heads(size, demand)
    if size is None:
        size = demand.tensor_parallel if count is None else max(1, len(names) // count)
        size = _power_of_two(min(size, len(names)), demand)
    if (count or 1) * size > len(names):
        raise ConfigError(
            f"{_SERVER}.replicas is {count or 1} and {_SERVER}.tensor_parallel is {size}, which takes "
            f"{counted((count or 1) * size, 'GPU')}, but {len(names)} "
            f"{'is' if len(names) == 1 else 'are'} there for vLLM: lower one of them"
        )
    count = count or len(names) // size
    used = count * size
    replicas = f"{counted(count, 'replica')} of {counted(size, 'GPU')}"
    why = f"{len(names)} GPUs are for vLLM, and its {replicas} need {used}"
    servers = tuple(tuple(names[start : start + size]) for start in range(0, used, size))
    return servers, dict.fromkeys(names[used:], why)


def divides(size: int, heads: int, kv_heads: int | None) -> bool:
    """Return whether vLLM can divide a model's heads among the GPUs of a replica.

    Heads of keys and values are divided too, or each GPU has a copy of one of them; vLLM asserts that one of
    the two is possible (vllm/model_executor/models/llama.py, `LlamaAttention`, 0.31).

    Args:
        size: GPUs of the replica.
        heads: Attention heads.
        kv_heads: Heads of keys and values; None if unknown.
    """
    return heads % size == 0 and (not kv_heads or kv_heads % size == 0 or size % kv_heads == 0)


def _check_heads(size: int | None, demand: Demand) -> None:
    heads, kv_heads = demand.heads, demand.kv_heads
    if size is None or heads is None or divides(size, heads, kv_heads):
        return
    fitting = ", ".join(str(one) for one in range(1, min(heads, 16) + 1) if divides(one, heads, kv_heads))
    of_values = f" and {kv_heads} of keys and values" if kv_heads not in (None, heads) else ""
    raise ConfigError(
        f"{_SERVER}.tensor_parallel is {size}, but the model has {heads} attention heads{of_values}, which "
        f"so many GPUs cannot divide: use one of {fitting}"
    )


def _power_of_two(most: int, demand: Demand) -> int:
    """Return the largest power of two that is at most `most` and divides the heads."""
    size = 1 << max(most, 1).bit_length() - 1
    while demand.heads is not None and not divides(size, demand.heads, demand.kv_heads):
        size //= 2
    return size


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
