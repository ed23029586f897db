"""What a training would do, for `swe-core run --dry-run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from swe_core.errors import ConfigError, sentence
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.planning.cards import of_hardware, of_this_machine
from swe_trainer_trl.planning.plan_text import plan_text
from swe_trainer_trl.planning.training_plan import TrainingPlan, plan_training
from swe_trainer_trl.server.gpus import visible_gpus

if TYPE_CHECKING:
    from swe_core.run.settings import Settings

_ELSEWHERE = "plan for other hardware with --hardware, such as --hardware 8x80GB"


def preview(
    config: TRLConfig,
    settings: Settings,
    model: str,
    url: str | None,
    *,
    tasks: int,
    say: Callable[[str], None],
) -> None:
    """Tell the layout and the memory of a training, and check its settings as a start would.

    Args:
        config: The settings of the worker.
        settings: The settings of the run.
        model: The policy.
        url: The user's server; None if the run starts vLLM.
        tasks: Number of tasks.
        say: Prints lines for the user.

    Raises:
        ConfigError: The training would not start.
    """
    here = config.hardware is None
    cards = of_this_machine(visible_gpus()) if config.hardware is None else of_hardware(config.hardware)
    try:
        plan = plan_training(config, model, cards, url=url, longest=settings.budget.context)
    except ConfigError as error:
        if cards.names:
            raise
        raise ConfigError(f"{sentence(error)}; or {_ELSEWHERE}") from None
    run = settings.run
    attempts = run.attempts if run.attempts > 1 else plan.keys.num_generations
    say(plan_text(plan, config, tasks=tasks, attempts=attempts, concurrency=run.concurrency))
    _check(config, plan, attempts, here)
    plan.enforce(config.memory_check)


def _check(config: TRLConfig, plan: TrainingPlan, attempts: int, here: bool) -> None:
    """Check the settings as a start does: with this machine's devices only if the plan is for it."""
    from swe_trainer_trl.server.vllm_server import model_config
    from swe_trainer_trl.trainer.arguments import checked_grpo, grpo_arguments, lora_config
    from swe_trainer_trl.trainer.disk_weight_transfer import refuse_tied
    from swe_trainer_trl.trainer.train import check

    if here:
        arguments = grpo_arguments(config, output_dir=Path(), group_size=attempts)
        check(config, lora_config(config), model_config(plan.model, arguments))
        return
    checked_grpo(config)
    lora_config(config)
    if config.weight_sync == "disk":
        from swe_trainer_trl.server.vllm_server import read_model_config

        initial = plan.keys.initial
        refuse_tied(
            read_model_config(
                plan.model, revision=initial["revision"], trust_remote_code=initial["trust_remote_code"]
            )
        )
