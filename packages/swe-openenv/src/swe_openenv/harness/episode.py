"""Rollouts in this process: a run in the background, and the server's environment without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread

from swe_core.errors import EngineError
from swe_core.run.components import PluginSet
from swe_core.run.execute import open_run
from swe_core.run.plan import Plan
from swe_openenv.config import ServerConfig
from swe_openenv.models import SweAction
from swe_openenv.plans import begun, observe
from swe_openenv.server.environment import SweEnvironment
from swe_openenv.server.episodes import Episodes, open_episodes
from swe_openenv.trace import trace_entries

Observation = Mapping[str, Any]
"""The fields of `swe_openenv.models.SweObservation`."""


@asynccontextmanager
async def open_here(plan: Plan, plugins: PluginSet, out: Path) -> AsyncIterator[Episodes]:
    """Open a run in the directory `out`, or resume the one there; leaving cancels its rollouts.

    Raises:
        SweError: The run cannot start or cannot continue.
    """
    resume = begun(plan, out)
    split = str(ServerConfig.model_fields["split"].default)
    async with open_run(plan, plugins, out, observe, resume=resume, again=["cancelled"]) as runner:
        async with open_episodes(runner, split) as episodes:
            yield episodes


class Episode:
    """A rollout that a session waits for. Its methods belong to the event loop of its run.

    Args:
        chosen: Arguments of a reset, which choose the task.
    """

    def __init__(self, episodes: Episodes, episode_id: str, chosen: Mapping[str, Any]) -> None:
        self.id = episode_id
        self._episodes = episodes
        self._chosen = chosen
        self._environment = SweEnvironment(episodes, "swe", interactive=False)

    async def begin(self) -> None:
        """Choose the task.

        Raises:
            UsageError: There is no such task.
        """
        await self._environment.reset_async(episode_id=self.id, **self._chosen)

    async def run(self) -> Observation:
        """Run the rollout, or wait for the one that runs. Return its end.

        Raises:
            SweError: It has no end.
        """
        observation = self._environment.observe(self._environment.current)
        if not observation.done:
            observation = await self._environment.step_async(SweAction())
        found: dict[str, Any] = observation.model_dump(mode="json")
        return found

    async def entries(self) -> list[dict[str, Any]]:
        """Return the trained calls of a finished rollout, chain by chain.

        Raises:
            SweError: There are none, or they cannot be read.
        """
        rollout = self._environment.current.rollout
        if rollout is None or rollout.ledger is None:
            raise EngineError(f"the engine of the rollout {self.id!r} does not record tokens: use 'vllm'")
        return await anyio.to_thread.run_sync(self._read)

    async def close(self, why: str | None) -> None:
        """Let go of the rollout.

        Args:
            why: Cancels it with this reason if it runs; None leaves it alone.
        """
        if why is not None:
            self._episodes.cancel(self._environment.current, why)

    def _read(self) -> list[dict[str, Any]]:
        store = self._episodes.runner.store
        return trace_entries([*store.turns(self.id)], store.chains(self.id))
