"""The hook specifications: every extension point of swe-core.

Hooks are synchronous, declarative and cheap: return `Component`s and import heavy libraries inside their
`create`. An implementation may take fewer arguments than its specification.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from swe_core.api.component import Component, RunOption

if TYPE_CHECKING:
    import click

    from swe_core.api.agent import AgentSpec
    from swe_core.api.checks import Check, Tables
    from swe_core.api.engine import Engine
    from swe_core.api.executor import Executor
    from swe_core.api.grader import Grader
    from swe_core.api.records import Rollout, Turn
    from swe_core.api.sandbox import SandboxProvider
    from swe_core.api.task import TaskSource
    from swe_core.api.worker import RolloutWorker

PROJECT = "swe_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# A specification has no body: hence "empty-body".


@hookspec
def swe_agents() -> Iterable[Component[AgentSpec]]:  # type: ignore[empty-body]
    """Return coding agents. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:  # type: ignore[empty-body]
    """Return sandbox providers. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_graders() -> Iterable[Component[Grader]]:  # type: ignore[empty-body]
    """Return graders. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_engines() -> Iterable[Component[Engine]]:  # type: ignore[empty-body]
    """Return engines. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_tasks() -> Iterable[Component[TaskSource]]:  # type: ignore[empty-body]
    """Return task sources. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_workers() -> Iterable[Component[RolloutWorker]]:  # type: ignore[empty-body]
    """Return rollout workers. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_executors() -> Iterable[Component[Executor]]:  # type: ignore[empty-body]
    """Return executors of rollouts. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_commands(cli: click.Group) -> None:
    """Add subcommands to `cli`. Called once, before the command line is parsed. Since 0.1."""


@hookspec
def swe_options() -> Iterable[RunOption]:  # type: ignore[empty-body]
    """Return options of `swe-core run` that set settings. Since 0.1.

    Called before the command line is parsed, so for installed plugins only and not for those of `-p`.
    """


@hookspec
def swe_checks(tables: Tables) -> Iterable[Check]:  # type: ignore[empty-body]
    """Return checks of this machine. Called once, by `swe-core doctor` only. Since 0.1.

    Args:
        tables: The settings of components. An implementation that needs none leaves the argument out.
    """


@hookspec
def swe_rollout_started(rollout_id: str, task_id: str, attempt: int) -> None:
    """Handle a started rollout. Called once per rollout, in the event loop: return quickly. Since 0.1."""


@hookspec
def swe_turn_recorded(rollout_id: str, turn: Turn) -> None:
    """Handle a recorded LLM call. Called once per turn, in the event loop: return quickly. Since 0.1."""


@hookspec
def swe_shape_reward(rollout: Rollout, reward: float) -> float:  # type: ignore[empty-body]
    """Return the reward of a rollout with a verdict, changed or not: from -1e6 to 1e6. Since 0.1.

    Called once per such rollout, in the event loop, before it is on disk: return quickly. Several plugins
    shape one after another, in the order in which they are loaded. An error stops the run.

    Args:
        rollout: The record. Its `reward` is the grader's.
        reward: What the plugin before returned; the grader's at the first.
    """


@hookspec
def swe_rollout_finished(rollout: Rollout) -> None:
    """Handle a finished rollout, which is on disk. Called once per rollout, for every outcome. Since 0.1."""
