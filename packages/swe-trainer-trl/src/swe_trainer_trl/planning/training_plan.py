"""The plan of a training: the layout of its GPUs, the memory of each, and what does not fit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

import httpx
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, ValidationError

from swe_core.errors import ConfigError, sentence
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.planning.cards import GIB, Cards
from swe_trainer_trl.planning.memory import (
    BYTES,
    ServerNeeds,
    TrainerNeeds,
    adapter_slots,
    cached_token,
    server_memory,
    trainer_memory,
)
from swe_trainer_trl.planning.model_size import ModelSize, model_size, without_cuda
from swe_trainer_trl.server.gpus import Demand, GPULayout, divides, layout, without_server
from swe_trainer_trl.server.vllm_server import (
    CPU_CACHE,
    CPU_CONTEXT,
    SHARED_PART,
    read_model_config,
    served_rank,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

_TRL = "worker.trl"
_SERVER_PART = 0.92
"""vLLM's share of a GPU of its own: the default of gpu_memory_utilization in vllm/config/cache.py, 0.31."""
_USEFUL_ROW = 4096
"""Tokens. A shorter limit is no remedy, since conversations of agents are longer."""
_MOST_GPUS = 1024
"""GPUs. A model that does not fit so many does not fit."""
_RANK = 32
"""Rank of the adapter that is proposed where full weights do not fit: that of the preset `lora`."""
_ASK = 5.0
"""Timeout of a question to the user's server, in seconds."""
_PARALLEL = (1, 16)
"""First version of TRL whose trainer takes the rows of several processes as the worker deals them."""


class TrainerKeys(BaseModel):
    """Keys of `[worker.trl.grpo]` that decide memory, with TRL's defaults.

    They are read before TRL is imported, because TRL's import fixes the GPUs of this process.
    """

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    dtype: str = "float32"
    model_init_kwargs: dict[str, Any] | None = None
    trust_remote_code: bool = False
    optim: str = "adamw_torch_fused"
    optim_args: str | None = None
    gradient_checkpointing: bool = True
    token_budget: int | None = None
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    bf16: bool | None = None
    fp16: bool = False
    max_staleness: int = 4
    num_generations: int = 8
    num_train_epochs: float = 3.0
    max_steps: int = -1

    @classmethod
    def of(cls, grpo: Mapping[str, Any]) -> TrainerKeys:
        """Return the keys of a table. A wrong value counts as unset: `checked_grpo` refuses it later."""
        try:
            return cls.model_validate(grpo)
        except ValidationError as error:
            wrong = {one["loc"][0] for one in error.errors()}
            return cls.model_validate({key: value for key, value in grpo.items() if key not in wrong})

    @property
    def initial(self) -> Mapping[str, Any]:
        """Return the options with which TRL loads the model."""
        return {
            "dtype": self.dtype,
            "revision": None,
            "trust_remote_code": self.trust_remote_code,
        } | (self.model_init_kwargs or {})


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a training would use.

    Args:
        model: The policy.
        cards: The GPUs that were planned for.
        layout: Who uses which GPU.
        processes: Trainer processes.
        sharding: Whether they share weights, gradients and optimizer (FSDP2) or each holds all.
        size: The size of the model; None if it could not be found out.
        keys: The keys of `[worker.trl.grpo]` that the plan read.
        context: Tokens of the longest context.
        row: Tokens of the longest forward pass of a trainer process.
        trainer: Part → bytes of a trainer process; empty without a size.
        server: Part → bytes on each GPU of a replica; empty without a size or a server of this run.
        cached: Tokens in the KV cache of a replica; None if unknown.
        problem: Why the model does not fit, and what would make it fit, as a sentence; None if it fits.
        unchecked: Why memory was not checked, as a sentence; None if it was.
    """

    model: str
    cards: Cards
    layout: GPULayout
    processes: int
    sharding: Literal["none", "fsdp"]
    size: ModelSize | None
    keys: TrainerKeys
    context: int
    row: int
    trainer: Mapping[str, int]
    server: Mapping[str, int]
    cached: int | None
    problem: str | None
    unchecked: str | None

    def enforce(self, memory_check: Literal["refuse", "warn"]) -> None:
        """Refuse what does not fit, or warn.

        Raises:
            ConfigError: The model does not fit, and `memory_check` is `refuse`.
        """
        if self.unchecked is not None:
            logger.warning("%s", self.unchecked)
        if self.problem is None:
            return
        if memory_check == "warn":
            logger.warning("%s", self.problem)
            return
        raise ConfigError(
            f"{self.problem}; this is an estimate, and {_TRL}.memory_check = 'warn' starts in spite of it"
        )


def plan_training(
    config: TRLConfig, model: str, cards: Cards, *, url: str | None, longest: int | None
) -> TrainingPlan:
    """Return the plan of a training.

    Neither TRL is imported nor CUDA initialised.

    Args:
        config: The settings of the worker.
        model: The policy, a directory or a name on the Hub.
        cards: What the training may use.
        url: The user's server; None if the run starts vLLM.
        longest: `budget.context`, tokens of the longest conversation; None without such a limit.

    Raises:
        ConfigError: The model cannot be read, or the layout is impossible.
    """
    keys = TrainerKeys.of(config.grpo)
    initial = keys.initial
    with without_cuda():
        described = read_model_config(
            model, revision=initial["revision"], trust_remote_code=initial["trust_remote_code"]
        )
        return _Planner(config, model, cards, keys, described, url, longest).plan()


class _Planner:
    def __init__(
        self,
        config: TRLConfig,
        model: str,
        cards: Cards,
        keys: TrainerKeys,
        described: PreTrainedConfig,
        url: str | None,
        longest: int | None,
    ) -> None:
        self.config, self.model, self.cards, self.keys, self.url = config, model, cards, keys, url
        self.described = described
        self.cpu = not cards.names
        self.unchecked: str | None = None
        self.size = self._size(config.lora)
        self.context = self._context()
        budget, batch = keys.token_budget, keys.per_device_train_batch_size
        self.conversation = min(self.context, longest or self.context)
        self.row = (budget or self.context) if budget is None or budget > 0 else batch * self.conversation
        self.dtype = self._bytes(keys.initial["dtype"])
        self.parallel = _parallel()

    def plan(self) -> TrainingPlan:
        processes, sharded, split = self._layout()
        trainer: Mapping[str, int] = {}
        server: Mapping[str, int] = {}
        cached = problem = None
        size, card = self.size, self.cards.smallest
        if size is not None:
            needs = self.trainer_needs(size, processes, sharded)
            trainer = trainer_memory(size, needs)
            if split.servers and (self.cpu or card is not None):
                serving = self.server_needs(size, len(split.server), split.shared)
                server = server_memory(size, serving)
                cached = server["cache"] // cached_token(size, serving)
            problem = self._problem(size, split, needs, server, cached)
            if problem is None and not self.cpu and card is None:
                self.unchecked = "whether the model fits was not checked: nvidia-smi does not list the GPUs"
        return TrainingPlan(
            model=self.model,
            cards=self.cards,
            layout=split,
            processes=processes,
            sharding="fsdp" if sharded else "none",
            size=size,
            keys=self.keys,
            context=self.context,
            row=self.row,
            trainer=trainer,
            server=server,
            cached=cached,
            problem=problem,
            unchecked=self.unchecked,
        )

    # -- layout --------------------------------------------------------------------------------------------

    def _layout(self) -> tuple[int, bool, GPULayout]:
        config, names = self.config, self.cards.names
        wanted = config.processes
        if (wanted or 1) > 1 and not self.parallel:
            raise ConfigError(
                f"{_TRL}.processes is {wanted}, and several trainer processes need TRL 1.16 or newer: pip "
                "install 'trl==1.16.0'"
            )
        demand = self._demand()
        if self.url is not None:
            split = without_server(names, wanted, demand)
        else:
            nccl = config.weight_sync == "trl" and config.lora is None
            split = layout(names, config.server, nccl=nccl, processes=wanted, demand=demand)
        processes = len(split.trainers) or wanted or 1
        sharded = config.sharding == "fsdp"
        if config.sharding is None and processes > 1:
            sharded = not self.cpu and not self.fits_whole(processes, split)
        return processes, sharded, split

    def fits_whole(self, processes: int, split: GPULayout) -> bool:
        """Return whether each of so many processes can hold all weights, beside vLLM on a shared GPU."""
        if self.size is None or self.cards.smallest is None:
            return False
        serving = self.server_needs(self.size, len(split.server), split.shared)
        taken = sum(server_memory(self.size, serving).values()) if split.shared else 0
        return self.trainer_bytes(self.size, processes, sharded=False) <= self.cards.smallest - taken

    def _demand(self) -> Demand:
        size, card = self.size, self.cards.smallest
        if size is None:
            return Demand()
        if card is None:
            return Demand(heads=size.heads, kv_heads=size.kv_heads)
        trainers = 1
        if self.config.sharding != "none" and self.parallel:
            trainers = self.fewest(size, card) or len(self.cards.names)
        tensor_parallel = next(
            (
                gpus
                for gpus in (1, 2, 4, 8, 16)
                if divides(gpus, size.heads, size.kv_heads) and self.holds_context(size, gpus, shared=False)
            ),
            len(self.cards.names),
        )
        return Demand(trainers, tensor_parallel, size.heads, size.kv_heads)

    # -- memory --------------------------------------------------------------------------------------------

    def trainer_needs(self, size: ModelSize, processes: int, sharded: bool) -> TrainerNeeds:
        keys = self.keys
        half = not self.cpu and (keys.fp16 or keys.bf16 is not False)
        return TrainerNeeds(
            weights=self.dtype,
            compute=2 if half else self.dtype,
            optimizer=keys.optim,
            optimizer_args=keys.optim_args,
            checkpointing=keys.gradient_checkpointing,
            row=self.row,
            references=self.config.loss.frozen_copies(lora=size.adapter),
            processes=processes,
            sharded=sharded,
            cpu=self.cpu,
        )

    def trainer_bytes(self, size: ModelSize, processes: int, *, sharded: bool) -> int:
        return sum(trainer_memory(size, self.trainer_needs(size, processes, sharded)).values())

    def fewest(self, size: ModelSize, room: int, most: int = _MOST_GPUS) -> int | None:
        """Return the fewest trainer processes that fit, sharded if several; None if `most` do not."""
        counts = range(1, most + 1)
        fitting = (n for n in counts if self.trainer_bytes(size, n, sharded=n > 1) <= room)
        return next(fitting, None)

    def server_needs(self, size: ModelSize, gpus: int, shared: bool) -> ServerNeeds:
        options, card = self.config.server, self.cards.smallest or 0
        part = options.gpu_memory_utilization or (SHARED_PART if shared else _SERVER_PART)
        adapters = 0
        lora = self.config.lora
        if lora is not None and self.config.weight_sync == "trl":
            rank = lora.get("r", 8) if isinstance(lora.get("r", 8), int) else 8
            adapters = adapter_slots(size, rank, served_rank(rank), self.keys.max_staleness + 2)
        return ServerNeeds(
            weights=self._bytes(options.dtype) if options.dtype else self.dtype,
            context=self.context,
            adapters=adapters,
            tensor_parallel=gpus,
            memory=int(part * card) if gpus else _cpu_cache(),
            card=card,
        )

    def holds_context(self, size: ModelSize, gpus: int, *, shared: bool, **changed: Any) -> bool:
        """Return whether a replica of so many GPUs holds the weights and one context."""
        needs = replace(self.server_needs(size, gpus, shared), **changed)
        return server_memory(size, needs)["cache"] >= needs.context * cached_token(size, needs)

    # -- what does not fit ---------------------------------------------------------------------------------

    def _problem(
        self,
        size: ModelSize,
        split: GPULayout,
        needs: TrainerNeeds,
        server: Mapping[str, int],
        cached: int | None,
    ) -> str | None:
        total = sum(trainer_memory(size, needs).values())
        if self.cpu:
            return self._cpu_problem(total * needs.processes, server, len(split.servers), cached)
        card = self.cards.smallest
        if card is None:
            return None
        taken = sum(server.values()) if split.shared else 0
        if total > card - taken:
            beside = f", of which vLLM takes {_gib(taken)}" if taken else ""
            which = "its GPU, which has" if needs.processes == 1 else "each of its GPUs, which have"
            return (
                f"the trainer needs {_gib(total)} on {which} {_gib(card)}{beside}: "
                f"{self._trainer_remedy(size, split, needs, card - taken)}"
            )
        if cached is not None and cached < self.context and not self.config.server.args:
            return self._server_problem(size, split, server, cached)
        return None

    def _cpu_problem(
        self, trainers: int, server: Mapping[str, int], replicas: int, cached: int | None
    ) -> str | None:
        total, ram = trainers + replicas * sum(server.values()), self.cards.ram
        if ram is not None and total > ram:
            return (
                f"the training needs {_gib(total)} of memory, and this machine has {_gib(ram)}: use a "
                f"smaller model, or lower {self._row_setting}, so that a forward pass has fewer than "
                f"{self.row:,} tokens"
            )
        if cached is not None and cached < self.context and not self.config.server.args:
            return (
                f"vLLM's KV cache of {_gib(server['cache'])} holds {cached:,} tokens, fewer than the context "
                f"of {self.context:,}: lower {_TRL}.server.max_model_len, or raise VLLM_CPU_KVCACHE_SPACE"
            )
        return None

    def _trainer_remedy(self, size: ModelSize, split: GPULayout, needs: TrainerNeeds, room: int) -> str:
        """Return the first setting that makes the trainer fit, as the rest of a sentence."""
        for remedy in self._remedies(size, split, needs, room):
            return remedy
        count = self.fewest(size, self.cards.smallest or 0)
        if count is None:
            return (
                f"with forward passes of {needs.row:,} tokens it does not fit GPUs of this size, however "
                f"many: lower {self._row_setting}, or use a smaller model"
            )
        return (
            f"no single setting makes it fit; with {_TRL}.processes = {count} and {_TRL}.sharding = 'fsdp' "
            "it fits, on as many GPUs beside those of vLLM"
        )

    def _remedies(self, size: ModelSize, split: GPULayout, needs: TrainerNeeds, room: int) -> Iterator[str]:
        def fits(changed: TrainerNeeds, other: ModelSize = size) -> bool:
            return sum(trainer_memory(other, changed).values()) <= room

        if not needs.checkpointing and fits(replace(needs, checkpointing=True)):
            yield f"set {_TRL}.grpo.gradient_checkpointing to true"
        if needs.processes > 1 and not needs.sharded and fits(replace(needs, sharded=True)):
            yield f"set {_TRL}.sharding to 'fsdp'"
        row = needs.row // 1024 * 1024
        while row >= _USEFUL_ROW and not fits(replace(needs, row=row)):
            row -= 1024
        if _USEFUL_ROW <= row < needs.row:
            yield self._shorter_row(row)
        count = self.fewest(size, room, self._most_trainers(split))
        if count is not None and not split.shared:
            yield f"set {_TRL}.processes to {count} and {_TRL}.sharding to 'fsdp'"
        if not size.adapter:
            small = self._size({"r": _RANK})
            half = replace(needs, weights=2, compute=2, references=0)
            if small is not None and fits(half, small):
                yield f"train an adapter instead of all weights ({_TRL}.preset = 'lora')"

    def _most_trainers(self, split: GPULayout) -> int:
        """Return the number of GPUs that the settings leave for trainer processes."""
        options, names = self.config.server, self.cards.names
        if self.url is not None:
            return len(names)
        if options.gpus is not None:
            return len(names) - sum(map(len, split.servers))
        return len(names) - (options.replicas or 1) * max(1, len(split.server))

    def _shorter_row(self, row: int) -> str:
        """Return what shortens a forward pass to `row` tokens, as the rest of a sentence."""
        said = f"set {self._row_setting} to {row}"
        if self.keys.token_budget == 0 and self.keys.per_device_train_batch_size > 1:
            count = row // self.conversation
            row = count * self.conversation or row
            shorter = "" if count else f" and {self._row_setting} to {row}"
            said = f"set {_TRL}.grpo.per_device_train_batch_size to {count or 1}{shorter}"
        return f"{said}: a forward pass then has {row:,} tokens, not {self.row:,}"

    @property
    def _row_setting(self) -> str:
        """Return the setting that limits the tokens of a forward pass."""
        budget = self.keys.token_budget
        if budget == 0:
            return "budget.context" if self.url is not None else f"{_TRL}.server.max_model_len"
        if budget is not None or self.url is not None:
            return f"{_TRL}.grpo.token_budget"
        return f"{_TRL}.server.max_model_len"

    def _server_problem(
        self, size: ModelSize, split: GPULayout, server: Mapping[str, int], cached: int
    ) -> str:
        """Return why a replica does not hold one context, which vLLM refuses, and what to set."""
        gpus, shared = len(split.server), split.shared
        said = (
            f"vLLM's KV cache has room for {cached:,} tokens beside {_gib(server['weights'])} of weights on "
            f"each of its GPUs, fewer than the context of {self.context:,}: "
        )
        free = len(self.cards.names) - len(split.trainers)
        for more in (2 * gpus, 4 * gpus, 8 * gpus):
            possible = more <= free and divides(more, size.heads, size.kv_heads)
            if possible and self.holds_context(size, more, shared=shared):
                return f"{said}set {_TRL}.server.tensor_parallel to {more}"
        if cached >= _USEFUL_ROW:
            return f"{said}set {_TRL}.server.max_model_len to {cached // 1024 * 1024}"
        if self.holds_context(size, gpus, shared=shared, weights=2):
            return f"{said}set {_TRL}.server.dtype to 'bfloat16'"
        part = 0.9 if not shared else 0.6
        if self.holds_context(size, gpus, shared=shared, memory=int(part * (self.cards.smallest or 0))):
            return f"{said}set {_TRL}.server.gpu_memory_utilization to {part}"
        return f"{said}use a smaller model, or more or larger GPUs"

    # -- the model -----------------------------------------------------------------------------------------

    def _size(self, lora: Mapping[str, Any] | None) -> ModelSize | None:
        trusted = bool(self.keys.initial["trust_remote_code"])
        try:
            return model_size(self.described, lora, trust_remote_code=trusted)
        except Exception as error:  # the boundary to the code of models
            logger.debug("the model could not be built", exc_info=True)
            self.unchecked = (
                f"whether the model fits was not checked: its size could not be found out ({sentence(error)})"
            )
            return None

    def _context(self) -> int:
        own = int(getattr(self.described.get_text_config(), "max_position_embeddings", None) or CPU_CONTEXT)
        if self.url is not None:
            return _served_context(self.url) or own
        return self.config.server.max_model_len or (min(own, CPU_CONTEXT) if self.cpu else own)

    def _bytes(self, dtype: Any) -> int:
        name = str(dtype).removeprefix("torch.")
        if name == "auto" and self.size is not None:
            name = self.size.dtype
        return BYTES.get(name, 4)


def _cpu_cache() -> int:
    """Return the bytes of vLLM's KV cache on a CPU."""
    try:
        return int(float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE)) * GIB)
    except ValueError:  # vLLM says so
        return int(float(CPU_CACHE) * GIB)


def _served_context(url: str) -> int | None:
    """Return the context of the user's server [tokens]; None if it does not say."""
    try:
        reply = httpx.get(f"{url}/v1/models", timeout=_ASK, trust_env=False).raise_for_status()
        return int(reply.json()["data"][0]["max_model_len"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError):
        return None


def _parallel() -> bool:
    """Return whether TRL trains in several processes here."""
    try:
        return Version(version("trl")).release[:2] >= _PARALLEL
    except PackageNotFoundError:  # the training says so
        return True


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
