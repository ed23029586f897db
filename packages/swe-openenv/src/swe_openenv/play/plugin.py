"""The plugin's entry point: tasks, sandbox and grader `openenv`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core import Component, SandboxProvider, hookimpl
from swe_openenv.play.config import PlayGraderConfig, PlaySandboxConfig, PlayTasksConfig

if TYPE_CHECKING:
    from swe_core.api.grader import Grader
    from swe_core.api.task import TaskSource


def _tasks(config: PlayTasksConfig) -> TaskSource:
    from swe_openenv.play.source import PlaySource

    return PlaySource(config)


def _sandbox(config: PlaySandboxConfig) -> SandboxProvider:
    from swe_openenv.play.provider import PlayProvider

    return PlayProvider(config)


def _grader(config: PlayGraderConfig) -> Grader:
    from swe_openenv.play.grader import PlayGrader

    return PlayGrader(config)


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    """Register the tasks `openenv`."""
    yield Component("openenv", _tasks, PlayTasksConfig, "the tasks of an OpenEnv server")


@hookimpl
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:
    """Register the sandbox `openenv`."""
    yield Component("openenv", _sandbox, PlaySandboxConfig, "an episode of an OpenEnv server per sandbox")


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    """Register the grader `openenv`."""
    yield Component("openenv", _grader, PlayGraderConfig, "the reward of an OpenEnv server's environment")
