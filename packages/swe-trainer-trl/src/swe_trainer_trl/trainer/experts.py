"""Mixtures of experts, which are not trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from swe_core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts in the configurations of transformers."""


def refuse_experts(config: PreTrainedConfig) -> None:
    """Refuse a mixture of experts.

    It is not recorded to which experts the server sent each token, and TRL cannot replay it. The trainer
    sends some tokens to other experts, so that the ratio of the two probabilities is noise.

    Args:
        config: Configuration of the policy.

    Raises:
        ConfigError: The model has several experts in a layer.
    """
    count = max(_counts(config.get_text_config().to_dict()), default=0)
    if count > 1:
        raise ConfigError(
            f"the model is a mixture of {count} experts ({config.model_type}), and the trainer does not know "
            "which of them vLLM chose for each token, so its ratios would be noise: train a dense model"
        )


def _counts(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of experts in a configuration and its parts."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif name in _COUNTS:  # a list has a number for each layer or modality
            yield from value if isinstance(value, list | tuple) else [value or 0]
