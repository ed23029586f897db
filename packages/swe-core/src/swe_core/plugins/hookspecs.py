"""Every extension point of swe-core, on one screen.

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
    from swe_core.api.checks import Check
    from swe_core.api.engine import Engine
    from swe_core.api.grader import Grader
    from swe_core.api.records import Rollout, Turn
    from swe_core.api.sandbox import SandboxProvider
    from swe_core.api.task import TaskSource
    from swe_core.api.worker import RolloutWorker

PROJECT = "swe_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# A specification has no body, so mypy is told not to miss one.


@hookspec
def swe_agents() -> Iterable[Component[AgentSpec]]:  # type: ignore[empty-body]
    """Coding agents. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:  # type: ignore[empty-body]
    """Sandbox providers. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_graders() -> Iterable[Component[Grader]]:  # type: ignore[empty-body]
    """Graders. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_engines() -> Iterable[Component[Engine]]:  # type: ignore[empty-body]
    """Engines. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_tasks() -> Iterable[Component[TaskSource]]:  # type: ignore[empty-body]
    """Task sources. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_workers() -> Iterable[Component[RolloutWorker]]:  # type: ignore[empty-body]
    """Rollout workers. Called once per process, when plugins are loaded. Since 0.1."""


@hookspec
def swe_commands(cli: click.Group) -> None:
    """Add subcommands to `cli`. Called once, before the command line is parsed. Since 0.1."""


@hookspec
def swe_options() -> Iterable[RunOption]:  # type: ignore[empty-body]
    """Options of `swe-core run` that are short for settings. Called before its command line is parsed, on
    installed plugins only: what `-p` loads is not known yet. Since 0.1."""


@hookspec
def swe_checks() -> Iterable[Check]:  # type: ignore[empty-body]
    """What `swe-core doctor` looks at on this machine. Called once, by that command only. Since 0.1."""


@hookspec
def swe_rollout_started(rollout_id: str, task_id: str, attempt: int) -> None:
    """A rollout starts. Called once per rollout, in the event loop: return quickly. Since 0.1."""


@hookspec
def swe_turn_recorded(rollout_id: str, turn: Turn) -> None:
    """An LLM call was answered and recorded. Called once per turn, in the event loop. Since 0.1."""


@hookspec
def swe_rollout_finished(rollout: Rollout) -> None:
    """A rollout is finished and on disk, whatever its outcome. Called once per rollout. Since 0.1."""
