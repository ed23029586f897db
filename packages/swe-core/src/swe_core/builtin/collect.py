"""The worker `collect`: runs every rollout once, into the run directory."""

from __future__ import annotations

from collections.abc import Iterable

from swe_core.api.component import Component, Config
from swe_core.api.worker import RolloutRunner, RolloutWorker
from swe_core.plugins.hookspecs import hookimpl


class Collect:
    """Runs every rollout once."""

    async def run(self, runner: RolloutRunner) -> None:
        """Run all requests of `runner`."""
        await runner.run_all()


def _create(config: Config) -> RolloutWorker:
    return Collect()


@hookimpl
def swe_workers() -> Iterable[Component[RolloutWorker]]:
    return [Component("collect", _create, summary="run every rollout once, into the run directory")]
