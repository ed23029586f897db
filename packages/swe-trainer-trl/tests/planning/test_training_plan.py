"""Layouts of published models on given hardware, what is refused, and what would make it fit."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if find_spec("transformers") is None or find_spec("torch") is None:
    pytest.skip("torch and transformers are not installed", allow_module_level=True)

from swe_core.cli import main
from swe_core.errors import ConfigError
from swe_testing.bad_inputs import BadInput, bad_inputs
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.planning import cards, training_plan
from swe_trainer_trl.planning.cards import GIB, Cards, of_hardware
from swe_trainer_trl.planning.plan_text import plan_text
from swe_trainer_trl.planning.training_plan import TrainerKeys, plan_training

from .models import qwen3

if TYPE_CHECKING:
    from swe_trainer_trl.planning.training_plan import TrainingPlan

NOWHERE = "http://127.0.0.1:9"
"""Where nobody listens."""
ADAPTER = {"lora": {"r": 32}, "grpo": {"model_init_kwargs": {"dtype": "bfloat16"}}}


WHOLE = {"grpo": {"gradient_checkpointing": False}}
WIDE = {"grpo": {"token_budget": 200_000}}
BATCH = {"grpo": {"token_budget": 0, "per_device_train_batch_size": 8}}
ALONE = {"grpo": {"token_budget": 0, "per_device_train_batch_size": 1}}
SHARED = {"processes": 2, "weight_sync": "disk", "server": {"gpus": "0,1"}}


def planned(
    directory: Path,
    name: str,
    hardware: str,
    settings: dict[str, Any] | None = None,
    url: str | None = None,
    longest: int | None = None,
    **changed: Any,
) -> TrainingPlan:
    config, model = TRLConfig.model_validate(settings or {}), str(qwen3(directory, name, **changed))
    return plan_training(config, model, of_hardware(hardware), url=url, longest=longest)


@pytest.mark.parametrize(
    ("name", "hardware", "settings", "trainers", "replicas", "sharding"),
    [
        ("Qwen3-0.6B", "8x80GB", {}, 1, [1] * 7, "none"),
        ("Qwen3-8B", "8x80GB", {}, 3, [1] * 5, "fsdp"),
        ("Qwen3-8B", "8x80GB", {"preset": "polar"}, 5, [1] * 3, "fsdp"),  # with the first policy
        ("Qwen3-8B", "1x80GB", {"preset": "lora"}, 1, [1], "none"),
        ("Qwen3-32B", "8x80GB", {"preset": "lora"}, 2, [2] * 3, "fsdp"),
        ("Qwen3-1.7B", "2x48GB", SHARED, 2, [1, 1], "fsdp"),  # whole they would fit, but not beside vLLM
    ],
)
def test_layouts_of_models_that_fit(
    tmp_path: Path,
    name: str,
    hardware: str,
    settings: dict[str, Any],
    trainers: int,
    replicas: list[int],
    sharding: str,
) -> None:
    plan = planned(tmp_path, name, hardware, settings)
    assert plan.problem is None
    assert plan.unchecked is None
    plan.enforce("refuse")
    assert (plan.processes, plan.sharding) == (trainers, sharding)
    assert len(plan.layout.trainers) == trainers
    assert [len(gpus) for gpus in plan.layout.servers] == replicas
    room = plan.cards.smallest or 0
    assert sum(plan.trainer.values()) + plan.layout.shared * sum(plan.server.values()) <= room
    assert plan.cached is not None
    assert plan.cached >= plan.context


@pytest.mark.parametrize(
    ("name", "hardware", "settings", "said"),
    [
        ("Qwen3-8B", "2x80GB", {}, r"its GPU, which has 80\.0 GiB: train an adapter .*preset = 'lora'"),
        ("Qwen3-8B", "4x80GB", {"processes": 1}, r"set worker\.trl\.processes to 3 and .*sharding to 'fsdp'"),
        ("Qwen3-8B", "8x80GB", {"processes": 4, "sharding": "none"}, r"each of its GPUs.*sharding to 'fsdp'"),
        ("Qwen3-1.7B", "2x80GB", WHOLE, "gradient_checkpointing to true"),
        ("Qwen3-1.7B", "2x80GB", WIDE, r"\.token_budget to \d+: a forward pass"),
        ("Qwen3-1.7B", "2x80GB", BATCH, r"set worker\.trl\.grpo\.per_device_train_batch_size to [1-7]:"),
        ("Qwen3-1.7B", "1x24GB", {"preset": "lora"}, r"vLLM takes 9\.6 GiB: .*\.max_model_len to 28672"),
        ("Qwen3-8B", "2x24GB", ADAPTER, "set worker.trl.server.max_model_len to|it does not fit"),
        ("Qwen3-32B", "2x24GB", {}, "no single setting makes it fit|does not fit GPUs of this size"),
    ],
)
def test_model_that_does_not_fit_is_refused_with_what_would_fit(
    tmp_path: Path,
    name: str,
    hardware: str,
    settings: dict[str, Any],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = planned(tmp_path, name, hardware, settings)
    with pytest.raises(ConfigError, match=rf"(?s){said}.*this is an estimate, and worker\.trl\.memory_check"):
        plan.enforce("refuse")
    plan.enforce("warn")
    assert caplog.messages == [plan.problem]


@pytest.mark.parametrize(
    ("name", "hardware", "settings", "more"),
    [
        ("Qwen3-1.7B", "2x80GB", WIDE, {}),
        ("Qwen3-1.7B", "2x80GB", BATCH, {"longest": 16_384}),
        ("Qwen3-1.7B", "1x40GB", ALONE, {"url": NOWHERE}),
        ("Qwen3-1.7B", "1x24GB", {"preset": "lora"}, {}),
        ("Qwen3-8B", "8x80GB", {"server": {"replicas": 7}}, {}),
    ],
)
@pytest.mark.slow
def test_following_what_is_proposed_helps(
    tmp_path: Path, name: str, hardware: str, settings: dict[str, Any], more: dict[str, Any]
) -> None:
    """Each sentence proposes another value than the set one. In the end the model fits, or none helps."""
    for _ in range(4):
        problem = planned(tmp_path, name, hardware, settings, **more).problem
        if problem is None or "no single setting" in problem or "train an adapter" in problem:
            return
        proposed = re.findall(r"(worker\.trl|budget)\.([\w.]+) to '?(\w+)", problem)
        assert proposed, problem
        for table, setting, value in proposed:
            given: Any = int(value) if value.isdigit() else value
            if table == "budget":
                assert more.get("longest") != given
                more = {**more, "longest": given}
                continue
            outer, _, inner = setting.rpartition(".")
            held = settings.get(outer, {}) if outer else settings
            assert held.get(inner) != given
            settings = {**settings, outer: {**held, inner: given}} if outer else {**settings, inner: given}
    raise AssertionError(problem)


def test_arguments_of_the_optimizer_count(tmp_path: Path) -> None:
    def optimizer(**grpo: Any) -> int:
        return planned(tmp_path, "Qwen3-1.7B", "2x80GB", {"grpo": grpo}).trainer["optimizer"]

    assert optimizer(optim="sgd") == 0
    assert 2 * optimizer(optim="sgd", optim_args="momentum=0.9") == optimizer(optim="adamw_torch")


def test_plan_says_how_many_rows_a_step_has(tmp_path: Path) -> None:
    config = TRLConfig(preset="polar")
    plan = planned(tmp_path, "Qwen3-8B", "8x80GB", {"preset": "polar"})
    text = plan_text(plan, config, tasks=4, attempts=16, concurrency=8)
    rows = 64 * plan.processes
    assert plan.processes > 1
    assert f"\nstep      {rows} rows, 1 in a forward pass, 64 passes in each of {plan.processes} proc" in text


@pytest.mark.parametrize(
    ("changed", "server", "said"),
    [
        ({}, {"tensor_parallel": 1}, r"set worker\.trl\.server\.tensor_parallel to [248]$"),
        ({"max_position_embeddings": 1_000_000}, {"replicas": 1}, r"set .*max_model_len to \d+$"),
    ],
)
@pytest.mark.slow
def test_replica_that_does_not_hold_one_context(
    tmp_path: Path, changed: dict[str, Any], server: dict[str, Any], said: str
) -> None:
    settings: dict[str, Any] = {**ADAPTER, "server": server}
    settings["grpo"] = {**ADAPTER["grpo"], "token_budget": 8192}
    problem = planned(tmp_path, "Qwen3-32B", "8x80GB", settings, **changed).problem or ""
    assert "fewer than the context" in problem
    assert re.search(said, problem)


def test_kl_term_needs_room_for_the_first_policy(tmp_path: Path) -> None:
    loss = {"loss": {"beta": 0.1}}
    full = planned(tmp_path, "Qwen3-1.7B", "2x80GB", loss)
    assert full.trainer["weights"] / 2 < full.trainer["reference"] < full.trainer["weights"]
    assert planned(tmp_path, "Qwen3-1.7B", "2x80GB", {**ADAPTER, **loss}).trainer["reference"] == 0


def test_longest_conversation_bounds_a_row_that_is_trained_alone(tmp_path: Path) -> None:
    assert planned(tmp_path, "Qwen3-0.6B", "2x80GB", ALONE).row == 40_960
    assert planned(tmp_path, "Qwen3-0.6B", "2x80GB", ALONE, longest=16_000).row == 16_000
    assert planned(tmp_path, "Qwen3-0.6B", "2x80GB", longest=16_000).row == 40_960  # rows are packed
    served = {"server": {"max_model_len": 8192}}
    assert planned(tmp_path, "Qwen3-0.6B", "2x80GB", served).row == 8192


def test_servers_of_the_user_leave_the_gpus_to_the_trainer(tmp_path: Path) -> None:
    plan = planned(tmp_path, "Qwen3-8B", "4x80GB", url=NOWHERE)
    assert (plan.layout.servers, plan.server, plan.cached) == ((), {}, None)
    assert (plan.processes, plan.sharding) == (3, "fsdp")
    assert list(plan.layout.idle) == ["3"]


def test_trainer_on_a_cpu_is_bounded_by_its_memory(tmp_path: Path) -> None:
    config = TRLConfig(weight_sync="disk", **{"grpo": {"bf16": False}})
    model = str(qwen3(tmp_path, "Qwen3-0.6B"))

    def on(ram: int | None) -> TrainingPlan:
        return plan_training(config, model, Cards((), {}, ram), url=None, longest=None)

    assert on(64 * GIB).problem is None
    assert on(64 * GIB).context == 16_384
    assert on(None).problem is None
    assert "and this machine has 8.0 GiB" in (on(8 * GIB).problem or "")


def test_several_processes_need_a_recent_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_plan, "version", lambda _name: "1.14.2")
    with pytest.raises(ConfigError, match=r"processes is 2, .* need TRL 1\.16 or newer: pip install"):
        planned(tmp_path, "Qwen3-0.6B", "4x80GB", {"processes": 2})
    assert planned(tmp_path, "Qwen3-8B", "8x80GB").processes == 1  # which does not fit, and says so
    assert planned(tmp_path, "Qwen3-8B", "8x80GB").problem is not None


def test_model_of_unknown_class_is_planned_without_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such layer")

    monkeypatch.setattr(training_plan, "model_size", fails)
    plan = planned(tmp_path, "Qwen3-8B", "8x80GB")
    assert (plan.processes, plan.problem, plan.size) == (1, None, None)
    plan.enforce("refuse")
    assert "whether the model fits was not checked" in caplog.messages[0]
    assert "no such layer" in caplog.messages[0]


def test_keys_have_the_defaults_of_trl() -> None:
    """They are read before TRL can be asked."""
    from dataclasses import fields

    from swe_trainer_trl.compat import AsyncGRPOConfig

    theirs = {one.name: one.default for one in fields(AsyncGRPOConfig)}
    ours = TrainerKeys.of({}).model_dump(exclude={"optim"})  # which depends on torch
    assert ours == {name: theirs[name] for name in ours}
    assert str(theirs["optim"]).startswith("adamw_torch")
    wrong = TrainerKeys.of({"max_steps": "many", "num_generations": "4", "learning_rate": 1.0})
    assert (wrong.max_steps, wrong.num_generations) == (-1, 4)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`swe-core run` with the plugin, in this process: its exit code, and what it says."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["swe-core", "run", "--plugins", "trl", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_dry_run_shows_who_uses_which_gpu(tmp_path: Path, command: Command) -> None:
    model = qwen3(tmp_path, "Qwen3-8B")
    more = ("--attempts", "4", "--set", "worker.trl.server.tensor_parallel=2")
    code, out, err = command("--dry-run", "--model", str(model), "--hardware", "8x80GB", *more)
    assert code == 0, err
    lines = dict(reversed([(line[:10].strip(), line[10:]) for line in out.splitlines()]))
    assert lines["worker"] == "trl"
    assert lines["training"] == "18 groups, 3 for each of 6 tasks, groups of 4 attempts"
    assert "8.19 B parameters in float32, all are trained" in lines["policy"]
    assert lines["GPU 0"].startswith("trainer 1 of 3, a share of the weights (FSDP): weights 10.2 + grad")
    assert lines["GPU 3"].startswith("vLLM 1, with 4: weights 15.3 +")
    assert lines["GPU 7"].startswith("idle: 5 GPUs are for vLLM, and its 2 replicas of 2 GPUs need 4")
    assert "tokens in each of 2 replicas" in lines["KV cache"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Qwen3-8B"]


@pytest.mark.parametrize("case", bad_inputs(__file__))
def test_bad_input(case: BadInput, refuse: Callable[[BadInput], None], tmp_path: Path) -> None:
    """A dry run refuses what a start would refuse."""
    qwen3(tmp_path, "Qwen3-8B")
    refuse(case)


def test_start_refuses_what_does_not_fit_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(cards, "_ram", lambda: 8 * GIB)
    monkeypatch.setattr("swe_trainer_trl.server.gpus.visible_gpus", lambda: ())
    model = qwen3(tmp_path, "Qwen3-0.6B", tie_word_embeddings=False)
    code, _, err = command("--model", str(model), "--weight-sync", "disk")
    said = err.splitlines()[-1]
    assert code == 2
    assert "and this machine has 8.0 GiB: use a smaller model" in said
    assert "worker.trl.memory_check = 'warn' starts in spite of it" in said
    assert [path.name for path in tmp_path.iterdir()] == ["Qwen3-0.6B"]
