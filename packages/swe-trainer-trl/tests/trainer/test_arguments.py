"""From settings to TRL's and PEFT's own objects: what is carried over, and what is refused in a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from swe_trainer_trl.presets import load_preset, preset_names

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed"),
]


def made(grpo: dict[str, Any] | None = None, config: TRLConfig | None = None, **options: Any) -> Any:
    from swe_trainer_trl.trainer.arguments import grpo_arguments  # imports TRL, which takes seconds

    return grpo_arguments(config or TRLConfig(grpo=grpo or {}), output_dir=Path("run/trainer"), **options)


CISPO = {"loss_type": "cispo"}
KL = {"loss": {"beta": 0.1}}
CORRECTED = {"vllm_importance_sampling_correction": True}


def adapter(**config: Any) -> Any:
    from swe_trainer_trl.trainer.arguments import lora_config

    return lora_config(TRLConfig.model_validate(config))


def refused(of: Callable[[], object]) -> str:
    """The one sentence of its refusal."""
    with pytest.raises(ConfigError) as raised:
        of()
    text = str(raised.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


def test_keys_reach_trl() -> None:
    """As text too, which an environment variable holds. What the user sets wins over defaults."""
    from swe_trainer_trl.compat import AsyncGRPOConfig

    got = made({"learning_rate": "3e-6", "epsilon_high": 0.28, "gradient_checkpointing": "false"})
    assert isinstance(got, AsyncGRPOConfig)
    assert (got.learning_rate, got.epsilon_high, got.gradient_checkpointing) == (3e-6, 0.28, False)
    assert (got.output_dir, got.save_steps, got.save_total_limit) == ("run/trainer", 10, 2)
    defaults = {"run_name": "ours", "project": "ours", "no_such_key": 1}
    got = made({"save_steps": 500, "num_generations": 4, "run_name": "theirs"}, defaults=defaults)
    assert (got.save_steps, got.num_generations, got.run_name, got.project) == (500, 4, "theirs", "ours")
    assert made({"num_generations": 4}, group_size=6).num_generations == 6


@pytest.mark.parametrize(("cuda", "bf16"), [(False, False), (True, None)])
def test_precision(monkeypatch: pytest.MonkeyPatch, cuda: bool, bf16: bool | None) -> None:
    """Nothing is added where there is CUDA. TRL would then check for itself, so it is replaced."""
    from swe_trainer_trl.compat import AsyncGRPOConfig

    @dataclasses.dataclass
    class Seen(AsyncGRPOConfig):
        def __post_init__(self) -> None: ...

    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("swe_trainer_trl.trainer.arguments.AsyncGRPOConfig", Seen)
    got = made({})
    assert (got.use_cpu, got.bf16) == (not cuda, bf16)
    assert made({"bf16": True}).bf16 is True  # a default, no rule


@pytest.mark.parametrize(("concurrency", "wanted", "ahead"), [(64, None, 22), (4, None, 8), (64, 5, 5)])
def test_default_groups_ahead_follow_the_concurrency(
    concurrency: int, wanted: int | None, ahead: int
) -> None:
    from swe_trainer_trl.trainer.train import TrainingJob, _feed_options

    config = TRLConfig(groups_ahead=wanted)
    step = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "max_staleness": 4}
    job = TrainingJob(
        config=config, directory=Path("run"), tasks=[], model="my-model", model_config=None, adapter=None,
        settings=Settings(run=RunOptions(concurrency=concurrency)),
        arguments=made({**step, "num_generations": 8}),
    )  # fmt: skip
    assert _feed_options(job, None).groups_ahead == ahead


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"grpo": {"learning_rat": 1.0}}, ["worker.trl.grpo.learning_rat", "did you mean 'learning_rate'?"]),
        ({"grpo": {"learning_rate": "fast"}}, ["learning_rate", "'fast'", "float"]),
        ({"grpo": {"dtype": "int8"}}, ["dtype", "'int8'", "bfloat16"]),
        ({"grpo": {"optim": "adamm"}}, ["worker.trl.grpo", "adamm"]),
        ({"grpo": {"temperature": 0}}, ["temperature", "above 0"]),
        ({"grpo": {"top_p": 1.5}}, ["top_p", "at most 1"]),
        ({"grpo": {"min_p": 2}}, ["min_p", "0 to 1"]),
        ({"grpo": {"num_generations": 1}}, ["num_generations", "at least 2"]),
        ({"grpo": {"max_completion_length": 512}}, ["max_completion_length", "engine.vllm.max_tokens"]),
        ({"grpo": {"hub_token": "secret"}}, ["hub_token", "HF_TOKEN"]),
        ({"grpo": {"report_to": "tensorbord"}}, ["no tracker 'tensorbord'; did you mean 'tensorboard'?"]),
        ({"grpo": {"report_to": ["wandb", "x-y-z"]}}, ["no tracker 'x-y-z'; there are: all, azure_ml"]),
        ({"grpo": {"report_to": "dvclive"}}, ["'dvclive' needs its library", ": pip install dvclive"]),
        ({"min_scored": 5, "grpo": {"num_generations": 4}}, ["group of 4 attempts cannot have 5 verdicts"]),
        ({"loss": CISPO}, ["worker.trl.grpo.epsilon_high is None, but with"]),
        ({"loss": CISPO, "grpo": {"epsilon_high": 0.28}}, ["set it to 1 or more, such as 5.0"]),
        ({"loss": {"delta": 1.2}}, ["worker.trl.loss.delta is 1.2, but must be above 1.2"]),
        ({"loss": {"delta": 1.25}, "grpo": {"epsilon_high": 0.28}}, ["must be above 1.28"]),
        ({"grpo": {"epsilon": -0.2}}, ["worker.trl.grpo.epsilon is -0.2"]),
        ({**KL, "weight_sync": "disk", "lora": {"bias": "all"}}, ["bias is 'all', which trains"]),
    ],
)
def test_settings_that_are_refused(config: dict[str, Any], words: list[str]) -> None:
    text = refused(lambda: made(config=TRLConfig.model_validate(config)))
    assert [word for word in words if word not in text] == []
    assert "secret" not in text


def test_variants_need_trl_that_packs_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, rows are laid out in another way."""
    monkeypatch.setattr("swe_trainer_trl.trainer.arguments.packing_module", None)
    made()
    config = TRLConfig.model_validate(KL)
    assert "has its own loss only: pip install 'trl==1.16.0'" in refused(lambda: made(config=config))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"beta": -0.1}, "greater than or equal to 0"),
        ({"loss_type": "gspo"}, "GSPO is 'grpo' with importance_sampling_level = 'sequence'"),
        ({"loss_type": "dapo"}, "worker.trl.normalize sets: use 'grpo'"),
        ({"delta": 0.9}, "greater than 1"),
        ({"delta": 2.0, **CISPO}, "delta limits the ratio of 'grpo'"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "_mode has no effect without vllm_importance_"),
        ({**CORRECTED, "vllm_importance_sampling_clip_min": 5}, "_clip_min must be below vllm_importance"),
        ({**CORRECTED, "delta": 2}, "or leave delta out"),
    ],
)
def test_losses_that_are_refused(loss: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        TRLConfig.model_validate({"loss": loss})
    assert words in raised.value.errors()[0]["msg"]
    assert len(raised.value.errors()) == 1


def test_refused_keys_are_trls() -> None:
    """A misspelt one would refuse nothing. Older versions lack some."""
    from swe_trainer_trl.compat import TRL_VERSION, AsyncGRPOConfig
    from swe_trainer_trl.trainer.arguments import _REFUSED

    unknown = _REFUSED.keys() - {one.name for one in dataclasses.fields(AsyncGRPOConfig)}
    assert not unknown or TRL_VERSION != "1.16.0", unknown
    for key in _REFUSED.keys() - unknown:
        assert f"worker.trl.grpo.{key} " in refused(lambda key=key: made({key: None}))


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
def test_adapters(lora: dict[str, Any], words: list[str]) -> None:
    """Those of the table are refused; merged ones may be of any kind."""
    text = refused(lambda: adapter(lora=lora))
    assert [word for word in words if word not in text] == []
    assert adapter() is None
    got = adapter(lora={"r": 4, "lora_alpha": "8"})
    assert (got.r, got.lora_alpha, got.target_modules, got.task_type) == (4, 8, "all-linear", "CAUSAL_LM")
    assert adapter(weight_sync="disk", lora={"use_dora": True, "target_modules": ["lm_head"]}).use_dora


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_whole(name: str) -> None:
    """Each is settings that everything takes, with nothing added."""
    got = made(config=TRLConfig.model_validate({"preset": name}))
    for key, value in load_preset(name)["grpo"].items():
        assert getattr(got, key) == value
    assert (adapter(preset=name) is not None) == ("lora" in load_preset(name))
    config = TRLConfig.model_validate({"preset": name, "grpo": {"max_steps": 3}})
    assert TRLConfig.model_validate_json(config.model_dump_json()) == config
    other = {"preset": f"{name}s"}, {"preset": "../x"}
    for preset, said in zip(other, (f"did you mean '{name}'?", "lora, polar"), strict=True):
        assert said in refused(lambda preset=preset: TRLConfig.model_validate(preset))


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
