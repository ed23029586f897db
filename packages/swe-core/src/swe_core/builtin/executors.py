"""The executor `local`: rollouts in the process of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager

from swe_core.api.agent import AgentSpec
from swe_core.api.component import Component, Config
from swe_core.api.engine import Engine
from swe_core.api.executor import Commit, Executor, ExecutorRun, RolloutSite
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.plugins.hookspecs import hookimpl


class LocalExecutor(Executor):
    """Runs rollouts in this process."""

    _site: RolloutSite
    _engine: Engine | None

    @asynccontextmanager
    async def open(self, run: ExecutorRun) -> AsyncIterator[None]:
        async with run.open_site() as site:
            self._site, self._engine = site, run.engine
            self.notes, self.metrics = site.notes, site.metrics
            yield

    @property
    def capacity(self) -> int | None:
        return None

    async def submit(
        self, request: RolloutRequest, observer: Observer, commit: Commit, agent: AgentSpec | None = None
    ) -> None:
        await self._site.run(request, observer, commit, agent)

    def cancel(self, rollout_id: str, why: str) -> None:
        self._site.cancel(rollout_id, why)

    def set_version(self, version: int) -> None:
        if self._engine is not None:
            self._engine.set_policy_version(version)

    async def take_out(self, url: str) -> Collection[str]:
        return self._engine.take_out(url) if self._engine is not None else ()

    def put_in(self, url: str) -> None:
        if self._engine is not None:
            self._engine.put_in(url)


def _local(config: Config) -> Executor:
    return LocalExecutor()


@hookimpl
def swe_executors() -> Iterable[Component[Executor]]:
    return [Component("local", _local, summary="runs rollouts in the process of the run")]
