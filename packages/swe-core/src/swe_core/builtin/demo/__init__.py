"""The task source "demo": six small repositories of our own, each with a real bug.

Its recording holds hand-written replies: they show the program at work, not what any model can do. The tasks
are ordinary ones, for any agent and any engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from swe_core.api.component import Component, Config
from swe_core.errors import ConfigError
from swe_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from swe_core.api.task import TaskSource


def _create(config: Config) -> TaskSource:
    if find_spec("pytest") is None:
        raise ConfigError(
            "the demo tasks are graded by pytest, which is not installed: pip install 'swe-core[demo]'"
        )
    from swe_core.builtin.demo.source import DemoSource

    return DemoSource()


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    return [Component("demo", _create, Config, "six small repositories with real bugs; hand-written replies")]
