"""SweSessionFactory: makes sessions of a run in this process; task_prompts: the rows for TRL."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openenv.core.harness import ResourceSessionFactory

from swe_core.errors import SweError, sentence
from swe_openenv.harness.background import Background
from swe_openenv.harness.choice import choose
from swe_openenv.harness.episode import Episode, open_here
from swe_openenv.harness.health import Health
from swe_openenv.harness.sampling import sampled_as
from swe_openenv.harness.session import SweSession
from swe_openenv.plans import load_plan

OUT = "runs/trl"
"""Default run directory."""


class SweSessionFactory(ResourceSessionFactory[SweSession]):
    """Makes sessions, each of which is a rollout that is graded.

    The rollouts run in this process. A functools partial of this class is what TRL's `HarnessRolloutWorker`
    takes.

    Args:
        config: TOML file with settings of the run.
        sets: `SECTION.KEY=VALUE` above the file.
        out: Run directory. A run there with the same settings is resumed.
        give_up_after: Rollouts in a row without a verdict after which the training stops.
        sampling: How the trainer samples: temperature and the rest, neutral. The engine must sample so.

    Raises:
        SweError: A setting is wrong, or the run cannot start.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | None = None,
        sets: Sequence[str] = (),
        out: str | os.PathLike[str] = OUT,
        *,
        give_up_after: int = 64,
        sampling: Mapping[str, float] | None = None,
    ) -> None:
        self._health = Health(give_up_after)
        plan, plugins = load_plan(_path(config), sets)
        if sampling is not None:
            plan = sampled_as(plan, sampling)
        self._background = Background(open_here(plan, plugins, Path(out)), self._health)

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> SweSession:
        """Return a session of a task. Its rollout starts when it is waited for.

        Args:
            task: See `swe_openenv.harness.choice.choose`.
            seed: Chooses the task where `task` is an empty prompt.
            episode_id: Name of the rollout; None makes one.

        Raises:
            SweError: There is no such task, or the factory is closed. After
                `give_up_after` of these in a row it returns sessions that stop the training.
        """
        name = episode_id if episode_id is not None else uuid.uuid4().hex
        try:
            episode = Episode(self._background.episodes, name, choose(task, seed))
            if self._health.over is None:
                self._background.call(episode.begin)
        except SweError as error:
            self._health.count(sentence(error))
            if self._health.over is None:
                raise
            episode = Episode(self._background.episodes, name, {})
        return SweSession(self._background, self._health, episode)

    def close(self) -> None:
        """Cancel the rollouts that run, and close the run. The end of the program does it too."""
        self._background.close()


def task_prompts(
    config: str | os.PathLike[str] | None = None, sets: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a row for each task, for a `datasets.Dataset` that TRL takes: the prompt is the task's id.

    Args:
        config, sets: As of `SweSessionFactory`.

    Raises:
        SweError: A setting is wrong.
    """
    ids = [task.instance_id for task in load_plan(_path(config), sets)[0].tasks]
    return [{"prompt": [{"role": "user", "content": task_id}]} for task_id in ids]


def _path(config: str | os.PathLike[str] | None) -> Path | None:
    return Path(config) if config is not None else None
