"""The plugin: the worker `trl`, its options and checks, and the commands that restore and deploy a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core.api.component import Component, RunOption
from swe_core.plugins.hookspecs import hookimpl
from swe_trainer_trl.config import TRLConfig

if TYPE_CHECKING:
    import click

    from swe_core.api.checks import Check
    from swe_core.api.worker import RolloutWorker
    from swe_trainer_trl.launch import TRLLauncher


def _create(config: TRLConfig) -> TRLLauncher:
    from swe_trainer_trl.launch import TRLLauncher

    return TRLLauncher(config)


@hookimpl
def swe_workers() -> Iterable[Component[RolloutWorker | TRLLauncher]]:
    """Offer `trl`."""
    summary = "train the model with TRL's AsyncGRPOTrainer"
    # A policy has millions of tries, so it must not be rewarded for patches that only look like a fix.
    strict = {"grader": {"swe": {"suspicious": "unresolved"}}}
    return [Component("trl", _create, TRLConfig, summary, defaults={"engine": "vllm"}, settings=strict)]


@hookimpl
def swe_options() -> Iterable[RunOption]:
    """Offer `--weight-sync`, `--hardware`, `--eval-tasks` and `--eval-every`."""
    sync = "Transfer of weights to vLLM by the worker trl: trl (NCCL or adapter) or disk. [default: trl]"
    gpus = "With --dry-run and the worker trl: GPUs to plan for, such as 8x80GB. [default: this machine's]"
    tasks = "Held-out tasks on which the worker trl evaluates the policy, as --tasks takes them."
    every = "With --eval-tasks: optimizer steps between two evaluations. [default: 10]"
    return [
        RunOption("--weight-sync", "worker.trl.weight_sync", sync, "HOW"),
        RunOption("--hardware", "worker.trl.hardware", gpus, "GPUS"),
        RunOption("--eval-tasks", "worker.trl.eval_tasks", tasks, "TASKS"),
        RunOption("--eval-every", "worker.trl.eval_every", every, "N"),
    ]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Offer the checks of this machine for training."""
    from swe_trainer_trl.checks import CHECKS

    return CHECKS


@hookimpl
def swe_commands(cli: click.Group) -> None:
    """Add `restore`, `space` and `job`."""
    from swe_trainer_trl.hub.restore import restore_command
    from swe_trainer_trl.space.commands import job, space

    cli.add_command(restore_command)
    cli.add_command(space)
    cli.add_command(job)
