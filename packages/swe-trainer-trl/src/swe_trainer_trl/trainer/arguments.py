"""Conversion of settings to the objects of TRL and PEFT: AsyncGRPOConfig and LoraConfig.

A key without effect is refused, and the error names the setting to use instead. A value that silently does
nothing is worse than an error.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from swe_core.errors import ConfigError, sentence
from swe_trainer_trl.compat import LORA, TRL_VERSION, AsyncGRPOConfig, packing_module
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.trackers import trackers

if TYPE_CHECKING:
    from peft import LoraConfig

_GRPO = "worker.trl.grpo"
_LOSS = "worker.trl.loss"
_LORA = "worker.trl.lora"

_NO_EVALUATION = "has no effect, since the trainer only trains: evaluate with a run that has no --plugins trl"
_NO_DATALOADER = "has no effect: rows come from rollouts, in the order in which groups finish"

_REFUSED: Mapping[str, str] = {
    "output_dir": "is in the run directory: choose that with --out",
    "vllm_server_base_url": "is not set here: use --engine-url, or leave it out and a server is started",
    "resume_from_checkpoint": "is not set here: use --resume",
    "local_rank": "is not set here: it comes from whatever starts the processes",
    "hub_token": "would be written to disk with the settings: put it in the environment as HF_TOKEN",
    "parallelism_config": "cannot be written in settings, and TRL takes none",
    "max_completion_length": "has no effect: set engine.vllm.max_tokens for one reply, or "
    "budget.completion_tokens for a rollout",
    "repetition_penalty": "cannot be used: TRL's loss does not know it, so ratios would be wrong",
    "chat_template_kwargs": "has no effect: set engine.vllm.template_kwargs",
    "max_tool_calling_iterations": "has no effect: set budget.turns",
    "fork_threshold_tokens": "has no effect: what was sampled is never tokenised again",
    "max_inflight_tasks": "has no effect: set run.concurrency",
    "request_timeout": "has no effect: set engine.vllm.timeout",
    "log_completions": "has no effect: the run directory keeps every rollout",
    "num_completions_to_print": "has no effect: the run directory keeps every rollout",
    "ignore_data_skip": "has no effect: TRL never skips rows",
    "fsdp": "is not set here: use worker.trl.sharding",
    "ddp_backend": "is not set here: it is nccl with CUDA, and gloo without",
    "ddp_timeout": "is not set here: processes wait for rows as long as rollouts take",
    "use_liger_kernel": "is not supported by TRL's AsyncGRPOTrainer",
    "liger_kernel_config": "is not supported by TRL's AsyncGRPOTrainer",
    "label_smoothing_factor": "has no effect on TRL's loss",
    "label_names": "has no effect on TRL's loss",
    "do_train": "has no effect: the worker always trains",
    **dict.fromkeys(
        (
            *("do_eval", "do_predict", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
            *("per_device_eval_batch_size", "prediction_loss_only", "eval_accumulation_steps"),
            *("eval_do_concat_batches", "eval_use_gather_object", "include_for_metrics"),
            *("batch_eval_metrics", "bf16_full_eval", "fp16_full_eval", "load_best_model_at_end"),
            *("metric_for_best_model", "greater_is_better"),
        ),
        _NO_EVALUATION,
    ),
    **dict.fromkeys(
        (
            *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "data_seed"),
            *("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_in_order"),
            *("dataloader_multiprocessing_context", "train_sampling_strategy", "length_column_name"),
        ),
        _NO_DATALOADER,
    ),
}
"""Refused keys of AsyncGRPOConfig, with the rest of the error's sentence."""

_SAVING: Mapping[str, Any] = {"save_steps": 10, "save_total_limit": 2}
"""Other defaults than TRL's: 500 steps may take days, and a crash loses all steps after the checkpoint."""

_FSDP: Mapping[str, Any] = {"version": 2, "state_dict_type": "FULL_STATE_DICT"}
"""One file of all weights, which `transformers` and vLLM read. TRL needs version 2."""

_AT_LEAST: Mapping[str, int] = {
    "num_generations": 2,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "weight_sync_steps": 1,
    "max_staleness": 0,
    "queue_maxsize": 1,
}
"""Bounds that neither TRL nor transformers checks."""

_ADAPTER = (
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "init_lora_weights"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
)
"""Keys of LoraConfig whose adapters vLLM serves exactly. vLLM uses one scale for all modules, so there is no
rank_pattern or alpha_pattern. It does not support biases, DoRA's magnitudes or fully trained modules."""
_MERGED = (
    *(*_ADAPTER, "rank_pattern", "alpha_pattern", "bias", "lora_bias", "use_dora", "fan_in_fan_out"),
    *("modules_to_save", "trainable_token_indices", "target_parameters", "ensure_weight_tying"),
)
"""Keys of LoraConfig if the adapter is merged before the sync."""
_INITIAL = (True, False, "gaussian", "orthogonal")
"""Initialisations that leave the frozen weights as the server has them, unlike PiSSA and others."""
_HEADS = ("lm_head", "embed_tokens")


def checked_grpo(config: TRLConfig) -> dict[str, Any]:
    """Return `[worker.trl.grpo]` with each value in the type that TRL declares.

    The check does not depend on the hardware of this machine.

    Raises:
        ConfigError: A key is unknown or refused, or a value is wrong.
    """
    for key in config.grpo:
        if key in _REFUSED:
            raise ConfigError(f"{_GRPO}.{key} {_REFUSED[key]}")
    values = _checked(AsyncGRPOConfig, config.grpo, _GRPO, f"TRL {TRL_VERSION}")
    _check_ranges(values)
    _check_loss(config, values)
    _check_trackers(config)
    return values


def grpo_arguments(
    config: TRLConfig,
    *,
    output_dir: Path,
    group_size: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    sharded: bool = False,
) -> AsyncGRPOConfig:
    """Return TRL's arguments from `[worker.trl.grpo]`.

    Without CUDA, the default is training on the CPU in full precision. The call initialises CUDA, so set
    CUDA_VISIBLE_DEVICES before.

    Args:
        config: The settings of the worker.
        output_dir: Directory in which TRL writes checkpoints.
        group_size: Attempts per task that the user asked for; wins over `num_generations`. None if unset.
        defaults: Other defaults than TRL's. Keys that this version does not have are left out.
        sharded: Whether the processes of the process group shard the weights (FSDP2).

    Raises:
        ConfigError: A key is unknown or refused, or a value is wrong.
    """
    values = checked_grpo(config)
    if group_size is not None:
        values["num_generations"] = group_size
    if not torch.cuda.is_available():
        values = {"use_cpu": True, "bf16": False} | values
    available = get_available_reporting_integrations()
    for name in trackers(config):
        if name in INTEGRATION_TO_CALLBACK and name not in available:
            raise ConfigError(f"the tracker {name!r} needs its library, which is missing: pip install {name}")
    known = {one.name for one in fields(AsyncGRPOConfig)}
    chosen = {key: value for key, value in (defaults or {}).items() if key in known}
    values = {**_SAVING, **chosen, **values}
    if sharded:
        values = {**values, "fsdp": True, "fsdp_config": {**_FSDP, **(values.get("fsdp_config") or {})}}
    _check_ranges(values)
    try:
        arguments = AsyncGRPOConfig(output_dir=str(output_dir), **values)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"{_GRPO}: {sentence(error).removeprefix('ValueError: ')}") from error
    if arguments.num_generations < config.min_scored:
        raise ConfigError(
            f"a group of {arguments.num_generations} attempts cannot have {config.min_scored} verdicts, "
            f"which is worker.trl.min_scored: raise --attempts or lower that"
        )
    return arguments


def sampling(arguments: AsyncGRPOConfig) -> dict[str, Any]:
    """Return the sampling settings of `[engine.vllm]` from TRL's arguments.

    TRL's loss divides the logits by `temperature`, so sampling must use the same temperature. The loss
    ignores top_p, top_k and min_p. With them, the server's log-probabilities are those of a narrower
    distribution, and the ratios start below 1.
    """
    return {
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "top_k": arguments.top_k if arguments.top_k > 0 else None,
        "min_p": arguments.min_p or 0.0,
    }


def lora_config(config: TRLConfig) -> LoraConfig | None:
    """Return PEFT's configuration from `[worker.trl.lora]`; None if all weights are trained.

    By default, every linear layer but the head is adapted (`target_modules`).

    Raises:
        ConfigError: PEFT or a recent TRL is missing, a key is unknown, a value is wrong, or vLLM cannot serve
            the adapter exactly.
    """
    if config.lora is None:
        return None
    if not LORA:
        raise ConfigError(f"{_LORA}: TRL {TRL_VERSION} trains no adapters: pip install 'trl==1.16.0'")
    try:
        from peft import LoraConfig
    except ImportError:
        raise ConfigError(f"{_LORA} needs PEFT, which is not installed: pip install peft") from None

    merged = config.weight_sync == "disk"
    taken = _MERGED if merged else _ADAPTER
    known = {one.name for one in fields(LoraConfig)}
    for key in config.lora:
        if key in known and key not in taken:
            raise ConfigError(
                f"{_LORA}.{key} is not taken: "
                + (
                    "vLLM cannot serve such an adapter exactly; with --weight-sync disk it is merged first"
                    if key in _MERGED
                    else f"there are: {', '.join(taken)}"
                )
            )
    values = _checked(LoraConfig, config.lora, _LORA, "PEFT's LoraConfig", taken)
    if values.get("r", 1) < 1:
        raise ConfigError(f"{_LORA}.r is {values['r']!r}: a rank is at least 1")
    if values.get("init_lora_weights", True) not in _INITIAL:
        raise ConfigError(
            f"{_LORA}.init_lora_weights is {values['init_lora_weights']!r}, which may change the frozen "
            f"weights, while the server's stay as they are: use true, false, 'gaussian' or 'orthogonal'"
        )
    targets = values.setdefault("target_modules", "all-linear")
    heads = [name for name in _HEADS if any(name in one for one in _listed(targets))]
    if heads and not merged:
        raise ConfigError(
            f"{_LORA}.target_modules holds {heads[0]!r}, for which vLLM takes no adapter: leave it out"
        )
    try:
        return LoraConfig(task_type="CAUSAL_LM", **values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{_LORA}: {sentence(error).removeprefix('ValueError: ')}") from error


def _checked(
    model: type[Any], values: Mapping[str, Any], where: str, whose: str, only: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return `values`, each validated against the type of its field in the dataclass `model`.

    A dataclass does not check types itself. Numbers given as text are converted.

    Args:
        model: The dataclass.
        values: Field → value.
        where: Settings table, for messages.
        whose: Owner of the fields, for messages.
        only: Allowed fields; None for all but the refused ones.

    Raises:
        ConfigError: A key is unknown, or a value is wrong.
    """
    hints = get_type_hints(model)
    declared = {one.name: one for one in fields(model) if one.init}
    offered = list(only) if only is not None else [name for name in declared if name not in _REFUSED]
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in offered:
            close = difflib.get_close_matches(key, offered, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "its documentation lists them"
            raise ConfigError(f"{where}.{key} is no setting of {whose}; {hint}")
        try:
            adapter = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True))
            checked[key] = adapter.validate_python(value)
        except ValidationError:
            raise ConfigError(f"{where}.{key} is {value!r}, but must be {_readable(hints[key])}") from None
        choices = declared[key].metadata.get("choices")
        if choices and checked[key] not in choices:
            raise ConfigError(f"{where}.{key} is {value!r}, but must be one of {', '.join(choices)}")
    return checked


def _check_ranges(values: Mapping[str, Any]) -> None:
    for key, least in _AT_LEAST.items():
        if values.get(key, least) < least:
            raise ConfigError(f"{_GRPO}.{key} is {values[key]!r}, but must be at least {least}")
    if not values.get("temperature", 1.0) > 0:
        raise ConfigError(
            f"{_GRPO}.temperature is {values['temperature']!r}, but must be above 0: the loss divides by it"
        )
    for key in ("epsilon", "epsilon_high"):
        if not 0 <= (values.get(key) or 0.0) < math.inf:
            raise ConfigError(f"{_GRPO}.{key} is {values[key]!r}, but must be a number from 0")
    if not 0 < values.get("top_p", 1.0) <= 1:
        raise ConfigError(f"{_GRPO}.top_p is {values['top_p']!r}, but must be above 0 and at most 1")
    if not 0 <= (values.get("min_p") or 0.0) <= 1:
        raise ConfigError(f"{_GRPO}.min_p is {values['min_p']!r}, but must be from 0 to 1")


def _check_loss(config: TRLConfig, values: Mapping[str, Any]) -> None:
    loss, high = config.loss, values.get("epsilon_high")
    if not loss.is_trls and packing_module is None:
        raise ConfigError(f"{_LOSS}: TRL {TRL_VERSION} has its own loss only: pip install 'trl==1.16.0'")
    if loss.loss_type == "cispo" and (high is None or high < 1):
        raise ConfigError(
            f"{_GRPO}.epsilon_high is {high!r}, but with {_LOSS}.loss_type = 'cispo' it is the largest ratio "
            "itself: set it to 1 or more, such as 5.0"
        )
    largest = 1 + (values.get("epsilon", AsyncGRPOConfig.epsilon) if high is None else high)
    if loss.delta is not None and loss.delta <= largest:
        raise ConfigError(
            f"{_LOSS}.delta is {loss.delta:g}, but must be above {largest:g}, which is 1 + "
            f"{_GRPO}.epsilon_high"
        )
    bias = (config.lora or {}).get("bias", "none")
    if loss.beta and bias != "none":
        raise ConfigError(
            f"{_LORA}.bias is {bias!r}, which trains biases of the model, so that the first policy of "
            f"{_LOSS}.beta is lost: leave one of the two out"
        )


def _check_trackers(config: TRLConfig) -> None:
    offered = [*INTEGRATION_TO_CALLBACK, "all", "none"]
    for name in trackers(config):
        if name not in offered:
            close = difflib.get_close_matches(name, offered, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(offered))}"
            raise ConfigError(f"a training has no tracker {name!r}; {hint}")


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _readable(hint: Any) -> str:
    """Return a type as users write it."""
    return hint.__name__ if type(hint) is type else str(hint).replace("typing.", "")
