"""TRL's asynchronous GRPO under the same names for every supported version.

No other module imports TRL's internals. The import of this module imports TRL, torch and transformers.

    1.10–1.14, 1.16   trl.experimental.async_grpo
    1.15              the same, but it cannot be imported without CUDA: it needs Triton
    1.18 (announced)  trl.AsyncGRPOTrainer, trl.AsyncGRPOConfig
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swe_core.errors import ConfigError

if TYPE_CHECKING:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_grpo_trainer import (
        RolloutSample,
        RolloutWorkerProtocol,
        WeightTransferProtocol,
    )

__all__ = [
    "LORA",
    "TRL_VERSION",
    "AsyncGRPOConfig",
    "AsyncGRPOTrainer",
    "RolloutSample",
    "RolloutWorkerProtocol",
    "WeightTransferProtocol",
    "make_sample",
    "packing_module",
    "trainer_module",
]

_OLDEST = (1, 10)
_NEEDS_CUDA = (1, 15)
_INSTALL = "pip install 'trl==1.16.0'"


def _load() -> tuple[str, Any]:
    """Return the version of TRL, and the package with its trainer and configuration.

    Raises:
        ConfigError: TRL is not installed, cannot be imported, or its version is not supported here.
    """
    try:
        found = version("trl")
    except PackageNotFoundError:
        raise ConfigError(f"the worker 'trl' needs TRL, which is not installed: {_INSTALL}") from None
    from packaging.version import Version  # TRL depends on it

    number = Version(found).release[:2]
    if number < _OLDEST:
        raise ConfigError(f"TRL {found} is too old: the worker 'trl' needs 1.10 or newer: {_INSTALL}")
    try:
        if number == _NEEDS_CUDA and not import_module("torch").cuda.is_available():
            raise ConfigError(
                f"TRL {found} does not run without CUDA, because it needs Triton: use another version, such "
                f"as {_INSTALL}"
            )
        trl = import_module("trl")
        if hasattr(trl, "AsyncGRPOTrainer"):
            return found, trl
        with warnings.catch_warnings():  # TRL warns that this API may change; this module handles that
            warnings.filterwarnings("ignore", "You are importing from 'trl.experimental'")
            return found, import_module("trl.experimental.async_grpo")
    except (ImportError, RuntimeError) as error:  # TRL turns an ImportError into a RuntimeError
        raise ConfigError(f"TRL {found} cannot be imported ({_one_line(error)}): {_INSTALL}") from error


def _resolve(package: Any) -> Mapping[str, Any]:
    """Return the names of TRL that this package uses. They are found through the trainer's module.

    Raises:
        ConfigError: A name is missing, or a sample has a required field that `make_sample` does not set.
    """
    try:
        module = sys.modules[package.AsyncGRPOTrainer.__module__]
        names = {
            "AsyncGRPOConfig": package.AsyncGRPOConfig,
            "AsyncGRPOTrainer": package.AsyncGRPOTrainer,
            "RolloutSample": module.RolloutSample,
            "RolloutWorkerProtocol": module.RolloutWorkerProtocol,
            "WeightTransferProtocol": module.WeightTransferProtocol,
        }
    except AttributeError as error:
        raise ConfigError(
            f"TRL {TRL_VERSION} is not laid out as any version that the worker 'trl' knows "
            f"({_one_line(error)}): {_INSTALL}"
        ) from error
    sample = fields(names["RolloutSample"])
    required = {one.name for one in sample if one.default is one.default_factory is MISSING}
    unknown = required - inspect.signature(make_sample).parameters.keys()
    if unknown:
        raise ConfigError(
            f"the samples of TRL {TRL_VERSION} need {', '.join(sorted(unknown))}, which the worker 'trl' "
            f"does not know: {_INSTALL}"
        )
    return names


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def make_sample(
    *,
    prompt: list[dict[str, Any]],
    completion: list[dict[str, Any]],
    input_ids: NDArray[np.int64],
    completion_mask: NDArray[np.int64],
    old_log_probs: NDArray[np.float32],
    advantage: float,
    model_version: int,
    group_id: int,
    metrics: Mapping[str, float],
    enqueued_at: float | None = None,
) -> RolloutSample:
    """Return one row for the trainer: a `RolloutSample` of the installed version.

    Args:
        prompt, completion: Messages. TRL shows them in its traces, but trains on neither.
        input_ids: [N], the whole row.
        completion_mask: [N], 1 where the policy sampled the id, so that it is trained.
        old_log_probs: [N], natural, at the temperature of training; 0.0 where the mask is 0.
        advantage: Advantage of every trained id.
        model_version: Version of the policy. TRL drops a row that is more than `max_staleness` behind.
        group_id: Number of the group, by which TRL counts trained tasks.
        metrics: Metrics that are averaged over the rows of a step and logged; the same names for every row.
        enqueued_at: Time of queueing, on the clock of `time.time`; ignored before TRL 1.11.
    """
    given = {
        "prompt": prompt,
        "completion": completion,
        "input_ids": input_ids,
        "completion_mask": completion_mask,
        "old_log_probs": old_log_probs,
        "advantage": advantage,
        "model_version": model_version,
        "group_id": group_id,
        "metrics": dict(metrics),
        "enqueued_at": enqueued_at,
    }
    return RolloutSample(**{one.name: given[one.name] for one in fields(RolloutSample) if one.name in given})


TRL_VERSION, _package = _load()
_names = _resolve(_package)
if not TYPE_CHECKING:
    AsyncGRPOConfig = _names["AsyncGRPOConfig"]
    AsyncGRPOTrainer = _names["AsyncGRPOTrainer"]
    RolloutSample = _names["RolloutSample"]
    RolloutWorkerProtocol = _names["RolloutWorkerProtocol"]
    WeightTransferProtocol = _names["WeightTransferProtocol"]

trainer_module: Any = sys.modules[AsyncGRPOTrainer.__module__]
"""Module in which the trainer looks up its functions."""
packing_module: Any = (
    sys.modules[trainer_module.TreeRow.__module__] if hasattr(trainer_module, "TreeRow") else None
)
"""Module of the packing by shared prefixes and its attention, since TRL 1.16; None before."""
LORA: bool = "peft_config" in inspect.signature(AsyncGRPOTrainer).parameters
"""Whether the trainer accepts `peft_config`, since TRL 1.14."""
