"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core.api.component import Component
from swe_core.plugins.hookspecs import hookimpl
from swe_openenv.config import ServerConfig

if TYPE_CHECKING:
    import click

    from swe_core.api.worker import RolloutWorker


def _worker(config: ServerConfig) -> RolloutWorker:
    from swe_openenv.server.worker import OpenEnvWorker

    return OpenEnvWorker(config)


@hookimpl
def swe_workers() -> Iterable[Component[RolloutWorker]]:
    """Register the worker `openenv`."""
    yield Component(
        name="openenv",
        create=_worker,
        config=ServerConfig,
        summary="serve rollouts as an OpenEnv environment",
    )


@hookimpl
def swe_commands(cli: click.Group) -> None:
    """Add the commands `openenv …`."""
    from swe_openenv.commands import openenv

    cli.add_command(openenv)
