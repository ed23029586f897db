"""From settings to TRL's and PEFT's own objects: what is carried over, and what is refused in a sentence."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from swe_core.builtin.vllm import VLLMConfig
from swe_core.errors import ConfigError
from swe_core.run.settings import RunOptions, Settings
from swe_testing.serving.start import missing
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.presets import load_preset, overlay, preset_names

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed"),
]


def made(grpo: dict[str, Any] | None = None, config: TRLConfig | None = None, **options: Any) -> Any:
    from swe_trainer_trl.trainer.arguments import grpo_arguments  # imports TRL, which takes seconds

    return grpo_arguments(config or TRLConfig(grpo=grpo or {}), output_dir=Path("run/trainer"), **options)


def adapter(**config: Any) -> Any:
    from swe_trainer_trl.trainer.arguments import lora_config

    return lora_config(TRLConfig.model_validate(config))


def refusal(grpo: dict[str, Any], **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        made(grpo, **options)
    return one_sentence(raised.value)


def one_sentence(error: ConfigError) -> str:
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


def test_keys_reach_trl() -> None:
    from swe_trainer_trl.compat import AsyncGRPOConfig

    got = made({"learning_rate": 3e-6, "epsilon_high": 0.28, "max_steps": 5, "num_generations": 4})
    assert isinstance(got, AsyncGRPOConfig)
    assert (got.learning_rate, got.epsilon_high, got.max_steps, got.num_generations) == (3e-6, 0.28, 5, 4)
    assert got.output_dir == "run/trainer"


@pytest.mark.parametrize(("concurrency", "wanted", "ahead"), [(64, None, 22), (4, None, 8), (64, 5, 5)])
def test_default_groups_ahead_follow_the_concurrency(
    concurrency: int, wanted: int | None, ahead: int
) -> None:
    from swe_trainer_trl.trainer.train import TrainingJob, _feed_options

    config = TRLConfig(groups_ahead=wanted)
    step = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "max_staleness": 4}
    job = TrainingJob(
        config=config,
        directory=Path("run"),
        tasks=[],
        settings=Settings(run=RunOptions(concurrency=concurrency)),
        model="my-model",
        model_config=None,
        arguments=made({**step, "num_generations": 8}),
        adapter=None,
    )
    assert _feed_options(job, None).groups_ahead == ahead


def test_numbers_as_text_are_numbers() -> None:
    """An environment variable holds text."""
    got = made({"learning_rate": "1e-5", "max_steps": "7", "gradient_checkpointing": "false"})
    assert (got.learning_rate, got.max_steps, got.gradient_checkpointing) == (1e-5, 7, False)


def test_attempts_win_over_num_generations() -> None:
    assert made({"num_generations": 4}, group_size=6).num_generations == 6
    assert made({"num_generations": 4}).num_generations == 4


def test_precision_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    got = made({})
    assert (got.use_cpu, got.bf16) == (True, False)
    assert made({"bf16": True}).bf16 is True  # a default, no rule


def test_precision_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is added where there is CUDA. TRL then checks for itself, so it is replaced."""
    import torch

    from swe_trainer_trl.compat import AsyncGRPOConfig

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    seen: dict[str, Any] = {}

    @dataclasses.dataclass
    class Seen(AsyncGRPOConfig):
        def __post_init__(self) -> None:
            seen.update(use_cpu=self.use_cpu, bf16=self.bf16)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("swe_trainer_trl.trainer.arguments.AsyncGRPOConfig", Seen)
    made({})
    assert seen == {"use_cpu": False, "bf16": None}


@pytest.mark.parametrize(
    ("grpo", "words"),
    [
        ({"learning_rat": 1.0}, ["worker.trl.grpo.learning_rat", "did you mean 'learning_rate'?"]),
        ({"learning_rate": "fast"}, ["learning_rate", "'fast'", "float"]),
        ({"dtype": "int8"}, ["dtype", "'int8'", "bfloat16"]),
        ({"optim": "adamm"}, ["worker.trl.grpo", "adamm"]),
        ({"temperature": 0}, ["temperature", "above 0"]),
        ({"top_p": 1.5}, ["top_p", "at most 1"]),
        ({"min_p": 2}, ["min_p", "0 to 1"]),
        ({"num_generations": 1}, ["num_generations", "at least 2"]),
        ({"max_staleness": -1}, ["max_staleness", "at least 0"]),
        ({"max_completion_length": 512}, ["max_completion_length", "engine.vllm.max_tokens"]),
        ({"output_dir": "x"}, ["output_dir", "--out"]),
        ({"hub_token": "secret"}, ["hub_token", "HF_TOKEN"]),
    ],
)
def test_refused_values(grpo: dict[str, Any], words: list[str]) -> None:
    text = refusal(grpo)
    for word in words:
        assert word in text
    assert "secret" not in text


# -- the loss ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"beta": -0.1}, "greater than or equal to 0"),
        ({"beta": "nan"}, "finite number"),
        ({"kl_coef": 0.1}, "Extra inputs are not permitted"),
        ({"loss_type": "gspo"}, "GSPO is 'grpo' with importance_sampling_level = 'sequence'"),
        ({"loss_type": "dapo"}, "worker.trl.normalize sets: use 'grpo'"),
        ({"loss_type": "ppo"}, "'grpo' or 'cispo'"),
        ({"delta": 0.9}, "greater than 1"),
        ({"delta": 2.0, "loss_type": "cispo"}, "delta limits the ratio of 'grpo'"),
        (
            {"vllm_importance_sampling_mode": "token_mask"},
            "_mode has no effect without vllm_importance_sampling_correction: set that to true",
        ),
        ({"vllm_importance_sampling_clip_max": 3.0}, "_clip_max has no effect without"),
        (
            {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_clip_max": 0},
            "greater than 0",
        ),
        (
            {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_clip_min": 5},
            "_clip_min must be below vllm_importance_sampling_clip_max, which is 2",
        ),
        ({"vllm_importance_sampling_correction": True, "delta": 2}, "or leave delta out"),
        ({"vllm_importance_sampling_correction": True, "loss_type": "cispo"}, "or leave loss_type out"),
    ],
)
def test_losses_that_are_refused(loss: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        TRLConfig.model_validate({"loss": loss})
    assert words in raised.value.errors()[0]["msg"]
    assert len(raised.value.errors()) == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"loss": {"loss_type": "cispo"}}, "worker.trl.grpo.epsilon_high is None, but with"),
        (
            {"loss": {"loss_type": "cispo"}, "grpo": {"epsilon_high": 0.28}},
            "set it to 1 or more, such as 5.0",
        ),
        ({"loss": {"delta": 1.2}}, "worker.trl.loss.delta is 1.2, but must be above 1.2"),
        ({"loss": {"delta": 1.25}, "grpo": {"epsilon_high": 0.28}}, "must be above 1.28"),
        ({"grpo": {"epsilon": -0.2}}, "worker.trl.grpo.epsilon is -0.2"),
        ({"grpo": {"epsilon_high": "nan"}}, "worker.trl.grpo.epsilon_high is nan"),
        (
            {"loss": {"beta": 0.1}, "weight_sync": "disk", "lora": {"bias": "all"}},
            "worker.trl.lora.bias is 'all', which trains biases",
        ),
    ],
)
def test_losses_that_contradict_other_settings(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made(config=TRLConfig.model_validate(config))
    assert words in one_sentence(raised.value)


def test_variants_need_trl_that_packs_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, rows are laid out in another way."""
    monkeypatch.setattr("swe_trainer_trl.trainer.arguments.packing_module", None)
    made()
    with pytest.raises(ConfigError, match=r"has its own loss only: pip install 'trl==1.16.0'"):
        made(config=TRLConfig.model_validate({"loss": {"beta": 0.1}}))


def test_refused_keys_are_trls() -> None:
    """A misspelt one would refuse nothing. Older versions lack some."""
    from swe_trainer_trl.compat import TRL_VERSION, AsyncGRPOConfig
    from swe_trainer_trl.trainer.arguments import _REFUSED

    unknown = _REFUSED.keys() - {one.name for one in dataclasses.fields(AsyncGRPOConfig)}
    assert not unknown or TRL_VERSION != "1.16.0", unknown
    for key in _REFUSED.keys() - unknown:
        assert f"worker.trl.grpo.{key} " in refusal({key: None})


def test_group_smaller_than_the_verdicts_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"group of 4 attempts cannot have 5 verdicts"):
        made(config=TRLConfig(min_scored=5), group_size=4)


@given(
    temperature=st.floats(0.01, 5),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 100),
    min_p=st.none() | st.floats(0, 1),
)
def test_sampled_ids_are_the_trained_ids(
    temperature: float, top_p: float, top_k: int, min_p: float | None
) -> None:
    """Every sampling setting that TRL takes is one that the engine takes."""
    from swe_trainer_trl.trainer.arguments import sampling

    got = sampling(made({"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}))
    engine = VLLMConfig(**got)
    assert (engine.temperature, engine.top_p) == (temperature, top_p)
    assert engine.top_k == (top_k if top_k > 0 else None)
    assert engine.min_p == (min_p or 0.0)


# -- LoRA --------------------------------------------------------------------------------------------------


def test_adapter() -> None:
    assert adapter() is None
    got = adapter(lora={"r": 4, "lora_alpha": "8"})
    assert (got.r, got.lora_alpha, got.target_modules, got.task_type) == (4, 8, "all-linear", "CAUSAL_LM")


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"lora_alfa": 4}, ["lora_alfa", "did you mean 'lora_alpha'?"]),
        ({"r": "many"}, ["worker.trl.lora.r", "'many'", "int"]),
        ({"r": 0}, ["worker.trl.lora.r", "at least 1"]),
        ({"target_modules": ["q_proj", "lm_head"]}, ["'lm_head'"]),
        ({"target_modules": ".*embed_tokens"}, ["'embed_tokens'"]),
        ({"init_lora_weights": "pissa"}, ["'pissa'", "'gaussian'"]),
        ({"use_dora": True}, ["use_dora", "vLLM"]),
        ({"task_type": "SEQ_CLS"}, ["task_type"]),
    ],
)
def test_adapters_that_are_refused(lora: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        adapter(lora=lora)
    text = one_sentence(raised.value)
    for word in words:
        assert word in text


def test_merged_adapters_may_be_of_any_kind() -> None:
    assert adapter(weight_sync="disk", lora={"use_dora": True, "target_modules": ["lm_head"]}).use_dora


# -- presets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_whole(name: str) -> None:
    """Each is settings that everything takes, with nothing added."""
    got = made(config=TRLConfig.model_validate({"preset": name}))
    for key, value in load_preset(name)["grpo"].items():
        assert getattr(got, key) == value
    assert (adapter(preset=name) is not None) == ("lora" in load_preset(name))


def test_user_wins_over_a_preset_key_by_key() -> None:
    config = TRLConfig.model_validate(
        {"preset": "lora", "grpo": {"learning_rate": 1.0}, "lora": {"r": 8}, "server": {"gpus": "3"}}
    )
    ours = load_preset("lora")
    assert config.grpo == {**ours["grpo"], "learning_rate": 1.0}
    assert config.lora == {**ours["lora"], "r": 8}
    assert config.server.gpus == "3"
    assert config.server.max_model_len == ours["server"]["max_model_len"]
    assert TRLConfig.model_validate({"preset": "lora", "lora": None}).lora is None


def test_settings_that_were_written_down_are_read_back() -> None:
    config = TRLConfig.model_validate({"preset": "polar", "grpo": {"max_steps": 3}})
    assert TRLConfig.model_validate_json(config.model_dump_json()) == config


def test_unknown_preset() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'polr'; did you mean 'polar'\?"):
        TRLConfig.model_validate({"preset": "polr"})
    with pytest.raises(ConfigError, match="lora, polar"):
        TRLConfig.model_validate({"preset": "../x"})


_TABLES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@given(
    base=st.dictionaries(st.sampled_from("abc"), _TABLES),
    top=st.dictionaries(st.sampled_from("abc"), _TABLES),
)
def test_overlay_keeps_all_of_the_top(base: dict[str, Any], top: dict[str, Any]) -> None:
    merged = overlay(base, top)
    assert overlay(merged, top) == merged
    assert overlay(base, {}) == base
    for key in base.keys() | top.keys():
        if not (isinstance(base.get(key), dict) and isinstance(top.get(key), dict)):
            assert merged[key] == (top[key] if key in top else base[key])


def test_checkpoints_are_saved_more_often_than_trl_does() -> None:
    ours = made()
    assert (ours.save_steps, ours.save_total_limit) == (10, 2)
    theirs = made({"save_steps": 500, "save_total_limit": None})
    assert (theirs.save_steps, theirs.save_total_limit) == (500, None)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("tensorbord", "a training has no tracker 'tensorbord'; did you mean 'tensorboard'?"),
        (["wandb", "tracker-x-y-z"], "a training has no tracker 'tracker-x-y-z'; there are: all, azure_ml"),
    ],
)
def test_unknown_tracker_is_refused_with_a_near_name(names: object, words: str) -> None:
    assert words in refusal({"report_to": names})


def test_tracker_without_its_library_is_refused() -> None:
    assert "'dvclive' needs its library, which is missing: pip install dvclive" in refusal(
        {"report_to": "dvclive"}
    )


def test_defaults_give_way_to_the_users_values() -> None:
    got = made({"run_name": "theirs"}, defaults={"run_name": "ours", "project": "ours", "no_such_key": 1})
    assert (got.run_name, got.project) == ("theirs", "ours")
