"""One training run on a running server of the policy."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import torch
from datasets import Dataset

from swe_core.api.task import Task
from swe_core.errors import ConfigError, SweError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_account import training_account
from swe_core.rollout.training_records import SUMMARY_FILE
from swe_core.run.settings import Settings
from swe_trainer_trl.compat import AsyncGRPOConfig
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.hub.push_checkpoints import CheckpointPush
from swe_trainer_trl.journal.checkpoints import CHECKPOINTS, METRICS_FILE, MODEL, last_checkpoint
from swe_trainer_trl.journal.journal import JOURNAL, Journal
from swe_trainer_trl.rollouts.group_scheduler import groups_to_keep_busy
from swe_trainer_trl.rollouts.messages import FeedOptions
from swe_trainer_trl.server.recovery import ServerRecovery
from swe_trainer_trl.server.served import compare
from swe_trainer_trl.server.vllm_server import VLLMServer
from swe_trainer_trl.trainer import cpu_attention
from swe_trainer_trl.trainer.arguments import lora_config, sampling
from swe_trainer_trl.trainer.disk_weight_transfer import DiskWeightTransfer, refuse_tied
from swe_trainer_trl.trainer.evaluations import Evaluations
from swe_trainer_trl.trainer.experts import refuse_experts
from swe_trainer_trl.trainer.ranks import RankJob, joined
from swe_trainer_trl.trainer.replica_client import replica_client
from swe_trainer_trl.trainer.sharded_checkpoints import check_sharding, refuse_stateless, unsharded
from swe_trainer_trl.trainer.trainer import Trainer, saving
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

ADAPTER = "trl-policy"
"""TRL serves the adapter of version n as `trl-policy-v{n}`."""
WEIGHTS = "weights"
"""Name in the run directory."""


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
        arguments: TRL's arguments.
        adapter: Configuration of the adapter; None if all weights are trained.
        group_size: Attempts per task that the user asked for; None if unset.
        defaults: Other defaults of TRL's arguments than TRL's.
        processes: Number of trainer processes.
        servers: Base URL of each server of the policy → the server that this process started; None if the
            user started it.
        key: The key of the servers; None without one.
        push: Pushes the checkpoints to the Hub; None if they stay local.
        held_out: The tasks to evaluate on; none without evaluations.
    """

    config: TRLConfig
    directory: Path
    tasks: Sequence[Task]
    settings: Settings
    model: str
    model_config: PreTrainedConfig
    arguments: AsyncGRPOConfig
    adapter: LoraConfig | None
    group_size: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1
    servers: Mapping[str, VLLMServer | None] = field(default_factory=dict)
    key: str | None = None
    push: CheckpointPush | None = None
    held_out: Sequence[Task] = ()


def check(config: TRLConfig, adapter: LoraConfig | None, model_config: PreTrainedConfig) -> None:
    """Check the model and the weight sync before anything is started or written.

    Raises:
        ConfigError: The model is a mixture of experts, the optimizer could not be resumed, or weights cannot
            be sent to the server as configured.
    """
    refuse_experts(model_config)
    refuse_stateless(config.grpo, config.sharding == "fsdp")
    if config.weight_sync == "disk":
        refuse_tied(model_config)
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
    directory, arguments, urls = job.directory, job.arguments, list(job.servers)
    arguments.vllm_server_base_url = urls[0]
    journal = Journal(directory / JOURNAL)
    try:
        checkpoint, step = last_checkpoint(directory / CHECKPOINTS)
        journal.rewind(step)
        (directory / SUMMARY_FILE).unlink(missing_ok=True)  # of a training that goes on now
        groups = math.ceil(arguments.num_train_epochs * len(job.tasks)) if arguments.max_steps <= 0 else None
        if groups is not None and not arguments.lr_scheduler_type.startswith("constant"):
            logger.warning(
                "worker.trl.grpo.lr_scheduler_type is %s, which needs worker.trl.grpo.max_steps: without it, "
                "the number of steps is only limited, and the learning rate changes little",
                arguments.lr_scheduler_type.value,
            )
        over = step >= arguments.max_steps if groups is None else journal.groups_done() >= groups
        with _ranks(job, checkpoint, over and checkpoint is not None) as (ranks, arguments, check_others):
            worker = TRLRolloutWorker(
                job.settings,
                directory,
                journal,
                directory / JOURNAL,
                _feed_options(job, groups),
                queue_rows=arguments.queue_maxsize,
                max_row=lambda: arguments.token_budget,
                check_others=check_others,
            )
            evaluations = None
            if job.held_out:
                evaluations = Evaluations(worker, journal, job.config.eval_every)
            recovery = ServerRecovery(job.servers, job.config.server, worker.server_lost, worker.server_back)
            with recovery as guard:
                several = len(urls) > 1
                with replica_client(lambda: guard.urls) if several else nullcontext():
                    trainer = _trainer(
                        ranks,
                        arguments,
                        worker=worker,
                        journal=journal,
                        groups=groups,
                        guard=guard,
                        compare=_comparison(job) if several else None,
                        evaluations=evaluations,
                        weight_transfer=_transfer(job, guard),
                        adapter=job.adapter,
                    )
                if job.push is not None:
                    trainer.add_callback(job.push)
                try:
                    _run(trainer, ranks)
                    if ranks.over:
                        trainer.complete_evaluations(step)
                finally:
                    worker.stop()
                step = step if ranks.over else trainer.state.global_step
                if step == 0:
                    raise SweError(_nothing_trained(journal))
            with saving(directory / MODEL):
                trainer.save_model(str(directory / MODEL))
        if job.push is not None:
            job.push.finish(directory / MODEL)
    finally:
        journal.close()
    _sum_up(RunDirectory.open(directory))


def _nothing_trained(journal: Journal) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in journal.skipped().items())
    return (
        f"nothing was trained: no group has a row for the trainer (skipped: {reasons or 'none'}): take other "
        "tasks, raise --attempts, or set worker.trl.no_spread=keep if the reason is no_spread"
    )


def follow(job: RankJob) -> None:
    """Take part in a training as a process other than rank 0.

    Raises:
        SweError: The training failed.
    """
    cpu_attention.install()
    # TRL takes part in the syncs of adapters where no transfer is given, and gives one to rank 0 only.
    elsewhere = object() if job.config.weight_sync == "disk" else None
    trainer = _trainer(
        job,
        job.arguments(),
        worker=None,
        journal=None,
        groups=None,
        weight_transfer=elsewhere,
        adapter=lora_config(job.config),
    )
    _run(trainer, job)
    trainer.save_model(str(job.directory / MODEL))


def _trainer(
    job: RankJob, arguments: AsyncGRPOConfig, *, adapter: LoraConfig | None, **others: Any
) -> Trainer:
    return Trainer(
        metrics=job.directory / METRICS_FILE,
        normalize=job.config.normalize,
        loss=None if job.over else job.config.loss,  # then nothing is trained
        model=job.model,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": task} for task in job.tasks]),
        **others,
        **({} if adapter is None else {"peft_config": adapter}),  # since TRL 1.14
    )


def _run(trainer: Trainer, job: RankJob) -> None:
    """Train; or, if the process was killed after the last step, train no further one."""
    if job.over and job.checkpoint is not None:
        with unsharded(job.checkpoint) as whole:
            trainer._load_from_checkpoint(str(whole))
    else:
        trainer.train(resume_from_checkpoint=None if job.checkpoint is None else str(job.checkpoint))


@contextmanager
def _ranks(
    job: TrainingJob, checkpoint: Path | None, over: bool
) -> Iterator[tuple[RankJob, AsyncGRPOConfig, Callable[[], None]]]:
    """Start the other trainer processes; yield what all know, TRL's arguments of this one, and a function
    that raises an error once another process has ended."""
    ranks = RankJob(
        config=job.config,
        directory=job.directory,
        output_dir=job.directory / CHECKPOINTS,
        group_size=job.group_size,
        defaults=job.defaults,
        model=job.model,
        tasks=[task.instance_id for task in job.tasks],
        checkpoint=checkpoint,
        over=over,
        processes=job.processes,
    )
    if checkpoint is not None and not over:
        check_sharding(checkpoint, job.config.sharding == "fsdp")
    if over or (job.processes == 1 and job.config.sharding != "fsdp"):  # to read the weights, one is enough
        yield ranks, job.arguments, lambda: None
        return
    with joined(ranks) as (arguments, check_others):
        arguments.vllm_server_base_url = job.arguments.vllm_server_base_url
        yield ranks, arguments, check_others


def _transfer(job: TrainingJob, guard: ServerRecovery) -> Any:
    """What sends weights to the servers; None is TRL's own way."""
    if job.config.weight_sync != "disk":
        return None
    return DiskWeightTransfer(lambda: guard.urls, job.directory / WEIGHTS, job.model_config)


def _comparison(job: TrainingJob) -> Callable[[Sequence[str], int], None]:
    """Return what compares the servers once they have the weights of a version."""
    adapter = job.adapter is not None and job.config.weight_sync == "trl"
    model = job.settings.run.model or job.model

    def check(urls: Sequence[str], version: int) -> None:
        if len(urls) > 1:
            compare(urls, f"{ADAPTER}-v{version}" if adapter else model, job.key)

    return check


def _feed_options(job: TrainingJob, groups: int | None) -> FeedOptions:
    config, arguments = job.config, job.arguments
    ahead = config.groups_ahead or groups_to_keep_busy(
        job.settings.run.concurrency,
        arguments.num_generations,
        arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * job.processes,
        arguments.max_staleness,
    )
    return FeedOptions(
        group_size=arguments.num_generations,
        max_staleness=arguments.max_staleness,
        min_scored=config.min_scored,
        keep_without_spread=config.no_spread == "keep",
        overlong=config.overlong,
        agent_errors=config.agent_errors,
        give_up_after=config.give_up_after,
        groups_ahead=ahead,
        shuffle=config.shuffle,
        seed=arguments.seed,
        eval_attempts=config.eval_attempts,
        summaries=config.summaries,
        groups=groups,
    )


def _sum_up(run: RunDirectory) -> None:
    """Write and log what became of all sampled tokens."""
    ledgers = [rollout.ledger for rollout in run.rollouts() if rollout.ledger is not None]
    account = training_account(run.path, ledgers, ended=True)
    if account is None:
        raise SweError(f"the training journal {str(run.path / JOURNAL)!r} cannot be read")
    (run.path / SUMMARY_FILE).write_bytes(orjson.dumps(account.summary(), option=orjson.OPT_INDENT_2) + b"\n")
    logger.info("trained %s", account.sentence())
