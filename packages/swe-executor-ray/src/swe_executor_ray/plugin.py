"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core.api.component import Component
from swe_core.plugins.hookspecs import hookimpl
from swe_executor_ray.config import RayConfig

if TYPE_CHECKING:
    from swe_core.api.checks import Check
    from swe_core.api.executor import Executor


def _create(config: RayConfig) -> Executor:
    from swe_executor_ray.executor import RayExecutor

    return RayExecutor(config)


@hookimpl
def swe_executors() -> Iterable[Component[Executor]]:
    """Register the executor `ray`."""
    yield Component("ray", _create, RayConfig, "runs rollouts on the nodes of a Ray cluster")


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of Ray."""
    from swe_executor_ray.checks import CHECKS

    return CHECKS
