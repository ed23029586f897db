"""Settings of the worker `trl`: `[worker.trl]`. This module imports neither torch nor TRL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from swe_core.api.component import Config
from swe_core.bundles import merged
from swe_trainer_trl.normalization import Normalize
from swe_trainer_trl.overlong import AgentErrors, Overlong
from swe_trainer_trl.presets import load_preset


class ServerOptions(Config):
    """`[worker.trl.server]`: the vLLM server that is started if `--engine-url` names none."""

    gpus: str | None = Field(
        default=None,
        description="its GPUs, such as '1' or '2,3', or by replica '2,3;4,5'; unset: all that the trainer "
        "leaves, or the only one",
    )
    replicas: int | None = Field(
        default=None, ge=1, description="servers of the whole model; unset: as many as the GPUs hold"
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        description="GPUs of each replica; unset: the smallest power of two that holds the model, or with "
        "`replicas` the largest for which there are GPUs",
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
        default=600.0, ge=0, description="seconds that all servers of --engine-url may be dead"
    )


_WEIGHTS = (
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
)
"""Settings of the weights of `vllm_importance_sampling_correction`."""
_RATIOS = ("loss_type", "importance_sampling_level", "delta")
"""Settings of losses with a ratio to the sampler."""


class LossOptions(Config):
    """`[worker.trl.loss]`: variants of TRL's loss. The names are those of TRL's GRPOConfig.

    `swe_trainer_trl.trainer.losses` has the formulas. The defaults are the loss of TRL's AsyncGRPOTrainer.
    """

    loss_type: Literal["grpo", "cispo"] = Field(
        default="grpo",
        description="grpo: the clipped ratio times the advantage; cispo: the truncated ratio, as a constant, "
        "times the advantage and the log-probability",
    )
    importance_sampling_level: Literal["token", "sequence"] = Field(
        default="token", description="a ratio for each token, or for each row (GSPO)"
    )
    delta: float | None = Field(
        default=None,
        gt=1,
        allow_inf_nan=False,
        description="largest ratio also where the advantage is negative; unset: no limit there",
    )
    vllm_importance_sampling_correction: bool = Field(
        default=False,
        description="weigh the policy gradient by the ratio to the sampler, instead of clipping that ratio",
    )
    vllm_importance_sampling_mode: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = Field(
        default="token_truncate",
        description="bring weights of tokens or rows into the limits, or drop those outside of them",
    )
    vllm_importance_sampling_clip_max: float = Field(
        default=2.0, gt=0, allow_inf_nan=False, description="largest weight"
    )
    vllm_importance_sampling_clip_min: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="smallest weight"
    )
    beta: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="weight of the KL divergence from the first policy; 0: no such term",
    )
    use_bias_correction_kl: bool = Field(
        default=True, description="multiply the KL term by the ratio, for an unbiased gradient"
    )

    @field_validator("loss_type", mode="before")
    @classmethod
    def _without_normalization(cls, value: object) -> object:
        """Say what replaces TRL's other names."""
        if value in ("dapo", "bnpo", "dr_grpo"):
            raise ValueError(
                "it differs from 'grpo' only in the weights of tokens, which worker.trl.normalize sets: use "
                "'grpo'"
            )
        if value == "gspo":
            raise ValueError("GSPO is 'grpo' with importance_sampling_level = 'sequence'")
        return value

    @model_validator(mode="after")
    def _without_contradiction(self) -> Self:
        if self.vllm_importance_sampling_clip_min >= self.vllm_importance_sampling_clip_max:
            raise ValueError(
                "vllm_importance_sampling_clip_min must be below vllm_importance_sampling_clip_max, which is "
                f"{self.vllm_importance_sampling_clip_max:g}"
            )
        if self.delta is not None and self.loss_type == "cispo":
            raise ValueError("delta limits the ratio of 'grpo': leave it out, or use that loss_type")
        weights, ratios = self._changed(_WEIGHTS), self._changed(_RATIOS)
        if weights and not self.vllm_importance_sampling_correction:
            raise ValueError(
                f"{weights[0]} has no effect without vllm_importance_sampling_correction: set that to true"
            )
        if ratios and self.vllm_importance_sampling_correction:
            raise ValueError(
                f"{ratios[0]} is of a loss with a ratio to the sampler, for which "
                "vllm_importance_sampling_correction puts a weight: set that to false, or leave "
                f"{ratios[0]} out"
            )
        return self

    def _changed(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that do not have their default."""
        return [name for name in names if getattr(self, name) != LossOptions.model_fields[name].default]

    @property
    def is_trls(self) -> bool:
        """Whether TRL's AsyncGRPOTrainer computes this loss itself."""
        return not (self.beta or self.vllm_importance_sampling_correction or self._changed(_RATIOS))

    def frozen_copies(self, *, lora: bool) -> int:
        """Return how many frozen copies of the model each trainer process holds beside the policy.

        The KL term needs the first policy. An adapter is switched off for it. Other weights are copied whole,
        linear layers but the head in the type of the forward pass, the rest as the policy is loaded.
        """
        return int(self.beta > 0 and not lora)


class TRLConfig(Config):
    """`[worker.trl]`. How groups are made is set here, how the policy is updated in `grpo`."""

    preset: str | None = Field(
        default=None, description="settings to start from: toy, lora, polar; others win"
    )
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
    processes: int | None = Field(
        default=None,
        ge=1,
        description="trainer processes, one GPU each; unset: as few as hold what is trained",
    )
    sharding: Literal["none", "fsdp"] | None = Field(
        default=None,
        description="none: each process holds all weights; fsdp: a share of them; unset: fsdp if several "
        "processes are needed",
    )
    hardware: str | None = Field(
        default=None, description="GPUs that --dry-run plans for, such as '8x80GB'; unset: this machine's"
    )
    memory_check: Literal["refuse", "warn"] = Field(
        default="refuse",
        description="what to do where the model does not fit by the estimate of its memory",
    )
    normalize: Normalize = Field(
        default="rollout", description="what counts alike in a step: each rollout, or each trained token"
    )
    loss: LossOptions = Field(default_factory=LossOptions)
    min_scored: int = Field(default=2, ge=2, description="attempts with a verdict that a group needs")
    no_spread: Literal["skip", "keep"] = Field(
        default="skip", description="groups whose attempts all have the same reward"
    )
    overlong: Overlong = Field(
        default="grade",
        description="attempts that a budget or max_tokens cut: grade: as graded; exclude: left out of their "
        "group; zero: reward 0 in their group",
    )
    agent_errors: AgentErrors = Field(
        default="zero",
        description="attempts whose agent failed after its first answered call: zero: their verdict counts, "
        "or 0 without one; drop: left out of their group",
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
    eval_tasks: str | None = Field(
        default=None, description="held-out tasks to evaluate on, as --tasks takes them; unset: no evaluation"
    )
    eval_every: int = Field(default=10, ge=1, description="optimizer steps between two evaluations")
    eval_attempts: int = Field(default=1, ge=1, description="attempts at each held-out task")
    summaries: bool = Field(
        default=True, description="whether the tokens of summaries, at a compaction, are trained"
    )
    server: ServerOptions = Field(default_factory=ServerOptions)

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        """Lay the user's settings over those of the preset."""
        if isinstance(values, Mapping) and isinstance(values.get("preset"), str):
            return merged(load_preset(values["preset"]), values)
        return values
