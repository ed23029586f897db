"""PushedRun: what a repository knows of a run, which is also how it is known what was pushed."""

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
"""In the repository: one file for each run."""
SHARDS = "data"
"""In the repository: the rows."""

_FORMAT = 1
_ROW_FILES = (".jsonl", ".json", ".parquet")


class Pushed(Record):
    """One rollout that is in the repository. What is run again under the same id starts at another time."""

    task_id: str
    outcome: Outcome
    started_at: datetime


class PushedRun(Record):
    """`runs/<run>.json` in a repository. It is written in the same commit as the shard that it tells of, so
    both are there or neither is.

    Names of tasks and models are as others may read them: of a path, its last part.
    """

    format: int = _FORMAT
    run: str = Field(description="of this run alone, `run_name`")
    created_at: datetime
    tasks: str = Field(description="where they come from")
    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    sandboxes: tuple[str, ...] = ()
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    shards: int = Field(default=0, ge=0)
    rollouts: dict[str, Pushed] = Field(default_factory=dict, description="id → what of it was pushed last")

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """A run that nothing was pushed of."""
        options = run.info.settings.get("run", {})
        return cls(
            run=run_name(run.info),
            created_at=run.info.created_at,
            tasks=public_name(str(options.get("tasks", ""))),
            versions=run.info.versions,
            notes=tuple(_without_home(note) for note in run.info.notes),
        )

    def is_missing(self, rollout: Rollout) -> bool:
        """Whether this rollout is to be pushed."""
        if not is_final(rollout):
            return False
        there = self.rollouts.get(rollout.id)
        return there is None or there.started_at != rollout.started_at

    def with_shard(self, rollouts: Sequence[Rollout]) -> Self:
        """The same with one more shard, which holds these."""
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
        """Of this file in the repository."""
        return f"{FOLDER}/{self.run}.json"

    @property
    def next_shard(self) -> str:
        """Path of the next shard in the repository."""
        return f"{SHARDS}/{self.run}-{self.shards:05d}.parquet"


def run_name(info: RunInfo) -> str:
    """A name of this run alone, the same wherever its directory lies: when it began, and a hash of that and
    of its tasks."""
    digest = hashlib.sha256(
        f"{info.created_at.isoformat()} {sorted(info.tasks.items())}".encode()
    ).hexdigest()
    return f"{info.created_at:%Y%m%d-%H%M%S}-{digest[:8]}"


def is_final(rollout: Rollout) -> bool:
    """Whether a rollout stays as it is: one that was interrupted runs again."""
    return rollout.outcome != "cancelled" or rollout.cancelled_as is not None


def public_name(name: str) -> str:
    """A model's or a task source's name as others may read it: of a path, its last part."""
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
