"""Mixtures of experts are refused by their configuration, and dense models are not."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.errors import ConfigError
from swe_testing.serving.start import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

MIXTURES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("MixtralConfig", {}, 8),
    ("DbrxConfig", {}, 4),  # in a part of it
    ("Qwen3VLMoeConfig", {}, 60),  # in its text model
    ("PreTrainedConfig", {"moe_num_experts": [64, 32]}, 64),  # for each modality, in code of the model's own
    ("Gemma4TextConfig", {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2}, 8),
)
DENSE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Qwen3Config", {}),
    ("Gemma4TextConfig", {}),  # names a number of experts: none
    ("GraniteMoeHybridConfig", {"num_local_experts": 0}),
    ("HunYuanMoEV1Config", {"num_experts": 1}),
)


def refuse(name: str, options: dict[str, Any]) -> None:
    import transformers

    from swe_trainer_trl.trainer.experts import refuse_experts

    refuse_experts(getattr(transformers, name)(**options))


def test_mixture_of_experts_is_refused_and_a_dense_model_is_taken() -> None:
    for name, options, count in MIXTURES:
        said = rf"^the model is a mixture of {count} experts \(.*train a dense model$"
        with pytest.raises(ConfigError, match=said):
            refuse(name, options)
    for name, options in DENSE:
        refuse(name, options)


def test_mixture_is_refused_before_anything_is_started() -> None:
    import transformers

    from swe_trainer_trl.config import TRLConfig
    from swe_trainer_trl.trainer.train import check

    with pytest.raises(ConfigError, match="mixture of 8 experts"):
        check(TRLConfig(), None, transformers.MixtralConfig())
