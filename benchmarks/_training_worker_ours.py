"""Our worker with rollouts that cost next to nothing (`_light_rollouts`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swe_core.plugins.manager import PluginSet
from swe_core.run.execute import create_directory
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.system.redaction import Redactor
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts.messages import FeedOptions
from swe_trainer_trl.trainer.worker import TRLRolloutWorker

PLUGIN = str(Path(__file__).with_name("_light_rollouts.py"))
NEVER_STALE = 1_000_000
JOURNAL, RUN = "train.sqlite", "run"
"""Names in the folder."""


def light_worker(
    folder: Path,
    journal: Journal,
    config: dict[str, Any],
    *,
    calls: int,
    pause: float,
    queue_rows: int,
    groups_ahead: int,
) -> TRLRolloutWorker:
    """A worker that is not started yet.

    Args:
        folder: Has the journal, and will have the run directory.
        journal: That journal.
        config: The benchmark's: upstream, model, model_directory, statements, concurrency, group_size.
        calls: LLM calls of a rollout.
        pause: Seconds between two of them.
        queue_rows: Rows that wait for the trainer.
        groups_ahead: Groups that run or wait.
    """
    settings = Settings(
        run={
            "plugins": (),
            "extra_plugins": (PLUGIN,),
            "tasks": "statements",
            "engine": "vllm",
            "engine_url": config["upstream"],
            "model": config["model"],
            "concurrency": config["concurrency"],
        },
        agent={"talk": {"calls": calls, "pause": pause}},
        tasks={"statements": {"file": config["statements"]}},
        engine={"vllm": {"tokenizer": config["model_directory"]}},
    )
    plugins = PluginSet(settings.run.plugins, settings.run.extra_plugins)
    directory = folder / RUN
    create_directory(plan_run(settings, plugins), plugins, directory, Redactor(), planned=None)
    options = FeedOptions(
        group_size=config["group_size"],
        max_staleness=NEVER_STALE,
        min_scored=2,
        keep_without_spread=True,  # as TRL's own worker does
        give_up_after=4,
        groups_ahead=groups_ahead,
        shuffle=False,
        seed=0,
    )
    return TRLRolloutWorker(
        settings,
        directory,
        journal,
        folder / JOURNAL,
        options,
        queue_rows,
        max_row=lambda: None,
        check_others=lambda: None,
    )
