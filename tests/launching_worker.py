"""A one-file plugin of a worker that is launched, as trainers are. Loaded with -p by the tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from swe_core import Component, hookimpl
from swe_core.api.component import Config
from swe_core.api.rollout_request import RolloutRequest
from swe_core.cli.progress import PlainProgress
from swe_core.errors import SweError
from swe_core.plugins.manager import PluginSet
from swe_core.rollout.runner import Runner
from swe_core.run.execute import execute
from swe_core.run.launcher import Launch, Launcher
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.system.event_loop import run


class TrainerConfig(Config):
    """How it ends."""

    end: Literal["well", "interrupted", "interrupted-early", "fails"] = "well"
    note: str = ""
    weight_sync: str = ""


class Rollouts:
    """Runs what is not finished yet; `interrupted` after the first one."""

    def __init__(self, interrupted: bool) -> None:
        self.interrupted = interrupted

    async def run(self, runner: Runner) -> None:
        finished = {rollout.id for rollout in runner.store.rollouts()}
        for request in runner.requests:
            if request.id not in finished:
                await runner.run(request)
                if self.interrupted:
                    os.kill(os.getpid(), signal.SIGINT)
                    await anyio.sleep_forever()


class Trainer(Launcher):
    """Notes what it is asked, and makes the plan again from settings that went through JSON."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config

    def launch(self, launch: Launch) -> bool:
        settings = Settings(**json.loads(json.dumps(launch.settings.model_dump(mode="json"))))
        plugins = PluginSet(settings.run.plugins, settings.run.extra_plugins)
        plan = plan_run(settings, plugins)
        note = {
            "in_loop": _in_loop(),
            "main_thread": threading.current_thread() is threading.main_thread(),
            "settings": launch.settings.model_dump(mode="json"),
            "directory": str(launch.directory),
            "exists": launch.directory.exists(),
            "resume": launch.resume,
            "agent": plan.agent.name,
            "same_settings": settings.model_dump() == launch.settings.model_dump(),
            "weight_sync": self.config.weight_sync,
        }
        Path(self.config.note).write_text(json.dumps(note))
        if self.config.end == "fails":
            raise SweError("the trainer 'launching' lost its device: look at its log")
        if self.config.end == "interrupted-early":
            return True
        worker = Rollouts(self.config.end == "interrupted")
        going = partial(execute, plan, plugins, launch.directory, _observe, worker, resume=launch.resume)
        return run(going).cancelled


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _observe(requests: Sequence[RolloutRequest], notes: Sequence[str]) -> PlainProgress:
    return PlainProgress(requests)


@hookimpl
def swe_workers() -> Iterable[Component[Launcher]]:
    return [Component("launching", Trainer, config=TrainerConfig, defaults={"agent": "nop"})]
