"""Settings of the worker `trl`: `[worker.trl]`. This module imports neither torch nor TRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from swe_core.api.component import Config
from swe_trainer_trl.normalization import Normalize
from swe_trainer_trl.presets import load_preset, overlay


class ServerOptions(Config):
    """`[worker.trl.server]`: the vLLM server that is started if `--engine-url` names none."""

    gpus: str | None = Field(
        default=None,
        description="its GPUs, such as '1' or '2,3'; unset: all but the first, cut to a power of two, or the "
        "only one",
    )
    max_model_len: int | None = Field(
        default=None, ge=1, description="tokens of its context; unset: the model's, on a CPU 16384 at most"
    )
    dtype: str | None = Field(default=None, description="unset: that of the trainer")
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="share of each GPU; unset: vLLM's, less on a shared GPU"
    )
    args: tuple[str, ...] = Field(default=(), description="further arguments of `vllm serve`")
    start_timeout: float = Field(default=900.0, gt=0, description="seconds until it must be healthy")
    restarts: int = Field(
        default=3, ge=0, description="in a row, without new weights in between, where it dies"
    )
    away_timeout: float = Field(
        default=600.0, ge=0, description="seconds that a server of --engine-url may be dead"
    )


class TRLConfig(Config):
    """`[worker.trl]`. How groups are made is set here, how the policy is updated in `grpo`."""

    preset: str | None = Field(default=None, description="settings to start from: polar or lora; others win")
    model: str | None = Field(
        default=None, description="the policy, a directory or a name on the Hub; unset: what --model names"
    )
    grpo: dict[str, Any] = Field(default_factory=dict, description="keys of TRL's AsyncGRPOConfig")
    lora: dict[str, Any] | None = Field(
        default=None, description="keys of PEFT's LoraConfig; unset trains all weights"
    )
    weight_sync: Literal["trl", "disk"] = Field(
        default="trl", description="trl: NCCL, or the adapter alone with lora; disk: files, without CUDA"
    )
    normalize: Normalize = Field(
        default="rollout", description="what counts alike in a step: each rollout, or each trained token"
    )
    min_scored: int = Field(default=2, ge=2, description="attempts with a verdict that a group needs")
    no_spread: Literal["skip", "keep"] = Field(
        default="skip", description="groups whose attempts all have the same reward"
    )
    give_up_after: int = Field(
        default=4,
        ge=1,
        description="groups in a row without any verdict, or token to train, after which the run ends",
    )
    groups_ahead: int | None = Field(
        default=None,
        ge=1,
        description="groups running or waiting for the trainer; unset: what keeps all slots busy, or more",
    )
    shuffle: bool = Field(default=True, description="another order of tasks in each epoch, from grpo.seed")
    server: ServerOptions = Field(default_factory=ServerOptions)

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        """Lay the user's settings over those of the preset."""
        if isinstance(values, Mapping) and isinstance(values.get("preset"), str):
            return overlay(load_preset(values["preset"]), values)
        return values
