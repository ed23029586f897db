"""One training run on a running server of the policy."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import torch
from datasets import Dataset

from swe_core.api.task import Task
from swe_core.errors import ConfigError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.settings import Settings
from swe_trainer_trl.compat import AsyncGRPOConfig, packing_module
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.hub.push_checkpoints import CheckpointPush
from swe_trainer_trl.hub.restore import earlier
from swe_trainer_trl.journal.checkpoints import CHECKPOINTS, METRICS_FILE, MODEL, last_checkpoint
from swe_trainer_trl.journal.journal import JOURNAL, Journal
from swe_trainer_trl.rollouts.group_scheduler import groups_to_keep_busy
from swe_trainer_trl.rollouts.messages import FeedOptions
from swe_trainer_trl.server.recovery import ServerRecovery
from swe_trainer_trl.server.vllm_server import VLLMServer
from swe_trainer_trl.trainer import cpu_attention
from swe_trainer_trl.trainer.arguments import sampling
from swe_trainer_trl.trainer.disk_weight_transfer import DiskWeightTransfer, refuse_tied
from swe_trainer_trl.trainer.trainer import Trainer, saving
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

ADAPTER = "trl-policy"
"""TRL serves the adapter of version n as `trl-policy-v{n}`."""
WEIGHTS = "weights"
SUMMARY = "training.json"
"""Names in the run directory."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is to be trained.

    Args:
        config: Settings of the worker.
        directory: The run directory, with a journal.
        tasks: The tasks to train on.
        settings: Settings of the rollouts' process.
        model: The policy's weights, a directory or a name on the Hub.
        model_config: Configuration of the model.
        arguments: TRL's arguments, with the server's URL.
        adapter: Configuration of the adapter; None if all weights are trained.
        server: The server that this process started; None if the user named an external one.
        push: Pushes the checkpoints to the Hub; None if they stay local.
    """

    config: TRLConfig
    directory: Path
    tasks: Sequence[Task]
    settings: Settings
    model: str
    model_config: PreTrainedConfig
    arguments: AsyncGRPOConfig
    adapter: LoraConfig | None
    server: VLLMServer | None = None
    push: CheckpointPush | None = None


def check(config: TRLConfig, adapter: LoraConfig | None, model_config: PreTrainedConfig) -> None:
    """Check the weight sync before anything is started or written.

    Raises:
        ConfigError: Weights cannot be sent to the server as configured, or TRL's CUDA kernels are missing.
    """
    if config.weight_sync == "disk":
        refuse_tied(model_config)
    if torch.cuda.is_available() and packing_module is not None and find_spec("kernels") is None:
        raise ConfigError(
            "TRL's attention on CUDA comes from the package 'kernels', which is not installed: pip install "
            "'swe-trainer-trl[cuda]'"
        )
    if config.weight_sync == "trl" and adapter is None and not torch.cuda.is_available():
        raise ConfigError(
            "weights go to vLLM through NCCL, which needs CUDA, and there is none: use --weight-sync disk, "
            "or train an adapter ([worker.trl.lora])"
        )


def rollout_settings(
    settings: Settings, engine: str, config: TRLConfig, arguments: AsyncGRPOConfig
) -> Settings:
    """Return the settings of the rollouts' process: those of the run, with the trainer's sampling settings.

    Args:
        settings: Settings of the run.
        engine: Name of the engine.
        config: Settings of the worker.
        arguments: TRL's arguments.

    Raises:
        ConfigError: The engine's settings contradict TRL's arguments.
    """
    changed = settings.model_dump(mode="json")
    values = changed["engine"].setdefault(engine, {})
    for key, value in sampling(arguments).items():
        if values.setdefault(key, value) != value:
            raise ConfigError(
                f"engine.{engine}.{key} is {values[key]!r} and worker.trl.grpo.{key} {value!r}: leave "
                "out the first, the policy is sampled as it is trained"
            )
    if config.lora is not None and config.weight_sync == "trl":
        values["adapter"] = ADAPTER
    return Settings(**changed)


def train(job: TrainingJob) -> None:
    """Train to the end, save the model and say what became of every sampled token.

    Raises:
        SweError: Training failed.
    """
    cpu_attention.install()
    directory, arguments, url = job.directory, job.arguments, job.arguments.vllm_server_base_url
    journal = Journal(directory / JOURNAL)
    try:
        checkpoint, step = last_checkpoint(directory / CHECKPOINTS)
        journal.rewind(step)
        worker = TRLRolloutWorker(
            job.settings,
            directory,
            journal,
            directory / JOURNAL,
            _feed_options(job),
            queue_rows=arguments.queue_maxsize,
            max_row=lambda: arguments.token_budget,
        )
        tasks = [{"prompt": task.instance_id} for task in job.tasks]
        groups = math.ceil(arguments.num_train_epochs * len(tasks)) if arguments.max_steps <= 0 else None
        recovery = ServerRecovery(url, job.server, job.config.server, worker.server_lost, worker.server_back)
        with recovery as guard:
            trainer = Trainer(
                worker=worker,
                journal=journal,
                metrics=directory / METRICS_FILE,
                groups=groups,
                normalize=job.config.normalize,
                guard=guard,
                model=job.model,
                args=arguments,
                train_dataset=Dataset.from_list(tasks),
                weight_transfer=_transfer(job),
                **({} if job.adapter is None else {"peft_config": job.adapter}),  # since TRL 1.14
            )
            if job.push is not None:
                trainer.add_callback(job.push)
            over = step >= arguments.max_steps if groups is None else journal.groups_done() >= groups
            if checkpoint is not None and over:  # killed after the last step, so train no further one
                trainer._load_from_checkpoint(str(checkpoint))
            else:
                try:
                    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
                finally:
                    trainer.end_progress()
                    worker.stop()
                step = trainer.state.global_step
        with saving(directory / MODEL):
            trainer.save_model(str(directory / MODEL))
        if job.push is not None:
            job.push.finish(directory / MODEL)
        _sum_up(RunDirectory.open(directory), journal, step)
    finally:
        journal.close()


def _transfer(job: TrainingJob) -> Any:
    """What sends weights to the server; None is TRL's own way."""
    if job.config.weight_sync != "disk":
        return None
    url = job.arguments.vllm_server_base_url
    return DiskWeightTransfer(url, job.directory / WEIGHTS, job.model_config)


def _feed_options(job: TrainingJob) -> FeedOptions:
    config, arguments = job.config, job.arguments
    ahead = config.groups_ahead or groups_to_keep_busy(
        job.settings.run.concurrency,
        arguments.num_generations,
        arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps,
        arguments.max_staleness,
    )
    return FeedOptions(
        group_size=arguments.num_generations,
        max_staleness=arguments.max_staleness,
        min_scored=config.min_scored,
        keep_without_spread=config.no_spread == "keep",
        give_up_after=config.give_up_after,
        groups_ahead=ahead,
        shuffle=config.shuffle,
        seed=arguments.seed,
    )


def _sum_up(run: RunDirectory, journal: Journal, steps: int) -> None:
    """Write and log what became of all sampled tokens.

    The rollouts' ledgers count the tokens of rollouts without a verdict and the tokens that no row may train.
    The journal counts the rest.
    """
    rollouts = [*earlier(run.path), *run.rollouts()]
    ledgers = [rollout.ledger for rollout in rollouts if rollout.ledger is not None]
    kept = journal.tokens()
    dropped = dict(kept.dropped)
    for ledger in ledgers:
        for reason, tokens in ledger.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + tokens
    sampled = sum(ledger.sampled for ledger in ledgers)
    missing = sampled - kept.trained - kept.waiting - sum(dropped.values())
    summary = {
        "steps": steps,
        "policy_version": journal.version,
        "groups": journal.groups_begun(),
        "tokens": {
            "sampled": sampled,
            "trained": kept.trained,
            "waiting": kept.waiting,
            "dropped": dropped,
            "unaccounted": missing,
        },
    }
    (run.path / SUMMARY).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count) or "none"
    logger.info(
        "trained %d steps, policy version %d: of %s sampled tokens %s were trained, %s wait in finished "
        "attempts, and dropped were %s%s",
        steps,
        journal.version,
        f"{sampled:,}",
        f"{kept.trained:,}",
        f"{kept.waiting:,}",
        reasons,
        f"; {missing:,} are unaccounted for" if missing else "",
    )
