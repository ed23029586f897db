"""Sessions for trainers that take OpenEnv's: TRL's `HarnessRolloutWorker` trains on our rollouts.

factory.py     SweSessionFactory, and the rows for TRL
session.py     SweSession: one rollout
choice.py      which task a session gets
sampling.py    the trainer's sampling against the engine's
health.py      when no further rollout can get a verdict
background.py  an event loop in a thread
episode.py     the rollout that a session runs on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_openenv.harness.factory import SweSessionFactory, task_prompts
    from swe_openenv.harness.session import SweSession

__all__ = ["SweSession", "SweSessionFactory", "task_prompts"]


def __getattr__(name: str) -> object:
    """Import a name at its first use: openenv takes seconds."""
    if name == "SweSession":
        from swe_openenv.harness.session import SweSession

        return SweSession
    if name in __all__:
        from swe_openenv.harness import factory

        return getattr(factory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
