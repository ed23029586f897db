"""Memory of a trainer process and of a replica of vLLM, part by part, by arithmetic.

Weights, gradients and optimizer are exact. Activations, and what CUDA, NCCL and vLLM take for themselves, are
estimates: `worker.trl.memory_check = "warn"` starts a training in spite of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swe_trainer_trl.planning.cards import GIB
from swe_trainer_trl.planning.model_size import ModelSize

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
"""Type of weights → bytes of a number."""

RESERVE = 2 * GIB
"""Estimate for each GPU of the trainer [bytes]: CUDA's context, cuBLAS, NCCL's buffers, fragmentation."""
CPU_RESERVE = int(1.5 * GIB)
"""Estimate for each process on a CPU [bytes]: Python with torch, and TRL or vLLM."""
_VLLM_RESERVE = int(1.5 * GIB)
"""Estimate for each GPU of vLLM [bytes]: CUDA's context, its graphs, NCCL."""

_TILE = (4096, 32768)
"""Tokens and columns of a tile of TRL's fused head: TOKEN_CHUNK_SIZE in trl/kernels/chunked_logprob.py and
_CHUNKED_LOGPROB_CHUNK_SIZE in trl/trainer/utils.py, TRL 1.16."""

_STATES: Mapping[str, tuple[float, bool]] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_anyprecision"), (2.0, True)),
    **dict.fromkeys(("sgd",), (0.0, True)),
    **dict.fromkeys(("adagrad", "rmsprop"), (1.0, True)),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit", "rmsprop_bnb", "rmsprop_bnb_32bit"), (4.0, False)),
    **dict.fromkeys(("paged_adamw_32bit",), (8.0, False)),
    **dict.fromkeys(("ademamix", "paged_ademamix_32bit"), (12.0, False)),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit", "rmsprop_bnb_8bit"), (1.0625, False)),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit"), (2.125, False)),
    **dict.fromkeys(("ademamix_8bit", "paged_ademamix_8bit"), (3.1875, False)),
    "adamw_torch_4bit": (1.0625, False),
}
"""Optimizer → its numbers for each parameter, and whether they have the type of the parameter; else bytes.

torch's AdamW keeps two moments in the parameter's type (torch.optim.AdamW). A float32 scale for each 256
numbers of 8-bit states, and each 128 of 4-bit states, is an assumption about bitsandbytes and torchao. Paged
states may move to the host's memory, and count as if they did not."""

_MORE_STATES: Mapping[str, Sequence[str]] = {"sgd": ("momentum",), "rmsprop": ("momentum", "centered")}
"""Optimizer → its arguments of which each adds a number for each parameter (torch.optim.SGD, RMSprop)."""


@dataclass(frozen=True, slots=True)
class TrainerNeeds:
    """What decides the memory of the trainer.

    Args:
        weights: Bytes of a stored weight, from `grpo.dtype` or `grpo.model_init_kwargs.dtype`.
        compute: Bytes of a number in a forward pass: 2 under autocast (`grpo.bf16`, `grpo.fp16`).
        optimizer: `grpo.optim`.
        optimizer_args: `grpo.optim_args`, such as "momentum=0.9"; None without any.
        checkpointing: `grpo.gradient_checkpointing`.
        row: Most tokens of a forward pass of one process.
        references: Frozen copies of the model, for the log-probabilities of a KL term.
        processes: Trainer processes.
        sharded: Whether each process holds a share of weights, gradients and optimizer (FSDP2).
        cpu: Whether the trainer runs on the CPU.
    """

    weights: int
    compute: int
    optimizer: str
    optimizer_args: str | None
    checkpointing: bool
    row: int
    references: int
    processes: int
    sharded: bool
    cpu: bool


def trainer_memory(size: ModelSize, needs: TrainerNeeds) -> dict[str, int]:
    """Return part → bytes of one trainer process.

    With n = the number of processes if sharded, else 1, and P parameters of which T are trained:

    - weights: P × bytes / n. PEFT keeps an adapter of a half-precision model in float32
      (`autocast_adapter_dtype`). FSDP2 keeps trained weights in float32 (accelerate's `fsdp2_prepare_model`).
    - gradients: T × bytes of a trained weight / n.
    - optimizer: see `_STATES`, / n. Adafactor keeps a row and a column of each matrix (Shazeer and Stern
      2018).
    - copies: the weights in the type of the forward pass. Autocast keeps a copy of each trained weight until
      the forward pass ends (torch.autocast, `cache_enabled`). FSDP2 gathers what is outside the layers, two
      layers, and the gradient of one (torch.distributed.fsdp.fully_shard). Without sharding, DDP's buckets
      are a second copy of the gradients (DistributedDataParallel, `gradient_as_bucket_view`).
    - reference: P × bytes, the frozen first policy of a KL term, whole in each process.
    - activations: see `activations`, an estimate.
    - reserve: an estimate.
    """
    shards = needs.processes if needs.sharded else 1
    each = 4 if size.adapter or (needs.sharded and not needs.cpu) else needs.weights
    base = size.parameters if size.adapter else size.parameters - size.trained
    weights = base * needs.weights + size.trained * each
    return {
        "weights": weights // shards,
        "gradients": size.trained * each // shards,
        "optimizer": optimizer_bytes(size, needs.optimizer, needs.optimizer_args, each) // shards,
        "copies": _copies(size, needs, each),
        "reference": needs.references * _reference(size, needs),
        "activations": activations(size, needs),
        "reserve": CPU_RESERVE if needs.cpu else RESERVE,
    }


def optimizer_bytes(size: ModelSize, optimizer: str, arguments: str | None, each: int) -> int:
    """Return the bytes of the optimizer's states. An optimizer that is not listed counts as AdamW.

    Args:
        arguments: As in `TrainerNeeds.optimizer_args`.
        each: Bytes of a trained weight.
    """
    if optimizer == "adafactor":
        return 4 * size.factored
    states, like_parameter = _STATES.get(optimizer, (2.0, True))
    given = [part.partition("=") for part in (arguments or "").replace(" ", "").split(",")]
    on = [name for name, _, value in given if value.strip("0.") and value != "False"]
    states += sum(name in on for name in _MORE_STATES.get(optimizer, ()))
    return int(size.trained * states * (each if like_parameter else 1))


def known_optimizer(optimizer: str) -> bool:
    """Return whether the states of this optimizer are known, so that it does not count as AdamW."""
    return optimizer == "adafactor" or optimizer in _STATES


def _copies(size: ModelSize, needs: TrainerNeeds, each: int) -> int:
    outside = size.parameters - size.layers * size.layer
    if needs.sharded:
        return (max(outside, 0) + 3 * size.layer) * needs.compute
    buckets = size.trained * each if needs.processes > 1 else 0
    if needs.compute >= needs.weights:
        return buckets
    return buckets + needs.compute * (size.layer if size.adapter else size.parameters)


def _reference(size: ModelSize, needs: TrainerNeeds) -> int:
    """Return the bytes of a frozen copy, whose layers have the type of the forward pass."""
    layers = size.layers * size.layer
    return layers * min(needs.compute, needs.weights) + (size.parameters - layers) * needs.weights


def activations(size: ModelSize, needs: TrainerNeeds) -> int:
    """Return an estimate of the activations of the longest row [bytes].

    For each token and layer, with hidden size H, Q and K numbers of all query and all key heads, and I of the
    MLP: 8 H in the type of the weights, and 2 H + 4 Q + 6 K + 6 I in that of the forward pass, without
    scores, which flash attention does not keep. It counts what autograd keeps of a layer with gated MLP, and
    the gradients in flight; a test compares it with what autograd keeps. An adapter adds a copy of the input
    of each
    linear layer: 5 H + Q + I. With checkpointing only the input of each layer is kept, and one layer is
    computed again (Chen et al. 2016, arXiv 1604.06174).

    The fused head of TRL computes logits in tiles: it keeps the hidden states, their gradient in float32, one
    tile, and the head's gradient in float32.
    """
    hidden, queries, keys = size.hidden, size.heads * size.head_dim, size.kv_heads * size.head_dim
    stream = needs.compute if needs.sharded else needs.weights
    layer = 8 * hidden * stream
    layer += (2 * hidden + 4 * queries + 6 * keys + 6 * size.intermediate) * needs.compute
    if size.adapter:
        layer += (5 * hidden + queries + size.intermediate) * needs.compute
    kept = size.layers * hidden * stream + layer if needs.checkpointing else size.layers * layer
    head = hidden * (needs.compute + 4)
    tile = min(needs.row, _TILE[0]) * min(size.vocabulary, _TILE[1]) * needs.compute
    return needs.row * (kept + head) + tile + (0 if size.adapter else 4 * size.head)


@dataclass(frozen=True, slots=True)
class ServerNeeds:
    """What decides the memory of a replica of vLLM.

    Args:
        weights: Bytes of a weight and of a number in the KV cache, from `server.dtype`.
        context: Tokens of the longest context.
        adapters: Parameters of all adapters that vLLM has room for.
        tensor_parallel: GPUs of the replica; 0 on the CPU.
        memory: Bytes that it may use on each GPU, or for its KV cache on the CPU.
        card: Memory of a GPU [bytes]; 0 on the CPU.
    """

    weights: int
    context: int
    adapters: int
    tensor_parallel: int
    memory: int
    card: int


def server_memory(size: ModelSize, needs: ServerNeeds) -> dict[str, int]:
    """Return part → bytes on each GPU of a replica; on the CPU, of its process.

    - weights: P × bytes / tensor parallel. Adapters: vLLM reserves room for `--max-loras` adapters of
      `--max-lora-rank`, counted as not split.
    - working: an estimate of what vLLM measures in its first batch: `max_num_batched_tokens` tokens through
      one layer, the logits of `max_num_seqs` requests in float32, twice, and a constant for CUDA and its
      graphs. The numbers are vLLM 0.31's defaults (vllm/engine/arg_utils.py).
    - cache: the rest of its share of the GPU.
    """
    if not needs.tensor_parallel:
        return {"weights": size.parameters * needs.weights, "working": CPU_RESERVE, "cache": needs.memory}
    large = needs.card >= 70 * GIB
    tokens, requests = (8192, 1024) if large else (2048, 256)
    working = tokens * (4 * size.hidden + 3 * size.intermediate) * needs.weights
    working += 2 * requests * size.vocabulary * 4
    weights = (size.parameters // needs.tensor_parallel + needs.adapters) * needs.weights
    working = working // needs.tensor_parallel + _VLLM_RESERVE
    return {"weights": weights, "working": working, "cache": max(0, needs.memory - weights - working)}


def cached_token(size: ModelSize, needs: ServerNeeds) -> int:
    """Return the bytes of one token in the KV cache of each GPU.

    2 (key and value) × layers × key heads × head size × bytes, divided among the GPUs of a replica as far as
    there are key heads: with fewer heads than GPUs vLLM keeps copies (vllm/model_executor/models/qwen3.py).
    Layers with a sliding window count as if they had none.
    """
    split = max(1, min(needs.tensor_parallel, size.kv_heads))
    return size.cached * needs.weights // split


def adapter_slots(size: ModelSize, rank: int, served: int, slots: int) -> int:
    """Return the parameters of all adapters that vLLM has room for.

    Args:
        rank: Rank of the adapter.
        served: vLLM's next rank (`--max-lora-rank`).
        slots: Adapters that it holds (`--max-loras`).
    """
    return size.trained * served * slots // rank
