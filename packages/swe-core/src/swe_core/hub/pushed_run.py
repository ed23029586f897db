"""PushedRun: the file in a data set that describes a run, and lists which of its rollouts were pushed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import Field

from swe_core.api.records import Outcome, Record, Rollout
from swe_core.rollout.run_directory import RunDirectory, RunInfo

FOLDER = "runs"
"""Folder in the repository with one file for each run."""
SHARDS = "data"
"""Folder in the repository with the shards."""

_FORMAT = 1
_ROW_FILES = (".jsonl", ".json", ".parquet")


class Pushed(Record):
    """A rollout in the repository. One that runs again under its id has another `started_at`."""

    task_id: str
    outcome: Outcome
    started_at: datetime


class PushedRun(Record):
    """`runs/<run>.json` in a repository, written in the same commit as the shard that it mentions.

    Of the names of tasks and models that are local paths it has the last part.
    """

    format: int = _FORMAT
    run: str = Field(description="unique name of the run, `run_name`")
    created_at: datetime
    tasks: str = Field(description="source of the tasks")
    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    sandboxes: tuple[str, ...] = ()
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    shards: int = Field(default=0, ge=0)
    rollouts: dict[str, Pushed] = Field(
        default_factory=dict, description="id → the rollout as it was pushed last"
    )

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """Return the description of a run of which nothing was pushed."""
        options = run.info.settings.get("run", {})
        return cls(
            run=run_name(run.info),
            created_at=run.info.created_at,
            tasks=public_name(str(options.get("tasks", ""))),
            versions=run.info.versions,
            notes=tuple(_without_home(note) for note in run.info.notes),
        )

    def is_missing(self, rollout: Rollout) -> bool:
        """Return whether this rollout must be pushed."""
        if not is_final(rollout):
            return False
        there = self.rollouts.get(rollout.id)
        return there is None or there.started_at != rollout.started_at

    def with_shard(self, rollouts: Sequence[Rollout]) -> Self:
        """Return the description with one more shard, which holds `rollouts`."""
        new = {
            one.id: Pushed(task_id=one.task_id, outcome=one.outcome, started_at=one.started_at)
            for one in rollouts
        }
        return self.model_copy(
            update={
                "shards": self.shards + 1,
                "rollouts": {**self.rollouts, **new},
                "models": _joined(self.models, (public_name(one.model) for one in rollouts)),
                "agents": _joined(self.agents, (one.agent for one in rollouts)),
                "sandboxes": _joined(self.sandboxes, (one.sandbox for one in rollouts)),
            }
        )

    @property
    def path(self) -> str:
        """Return the path of this file in the repository."""
        return f"{FOLDER}/{self.run}.json"

    @property
    def next_shard(self) -> str:
        """Return the path of the next shard in the repository."""
        return f"{SHARDS}/{self.run}-{self.shards:05d}.parquet"


def run_name(info: RunInfo) -> str:
    """Return a unique name of the run: its start, and a hash of start and tasks."""
    digest = hashlib.sha256(
        f"{info.created_at.isoformat()} {sorted(info.tasks.items())}".encode()
    ).hexdigest()
    return f"{info.created_at:%Y%m%d-%H%M%S}-{digest[:8]}"


def is_final(rollout: Rollout) -> bool:
    """Return whether the rollout never runs again, as an interrupted one does on a resume."""
    return rollout.outcome != "cancelled" or rollout.cancelled_as is not None


def public_name(name: str) -> str:
    """Return the public name of a model or a task source: of a local path, its last part."""
    path = Path(name)
    local = (
        name.startswith((".", "~", "/")) or len(path.parts) > 2 or path.suffix in _ROW_FILES or path.exists()
    )
    return path.name if local else name


def _without_home(text: str) -> str:
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _joined(known: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*known, *filter(None, more)]))
