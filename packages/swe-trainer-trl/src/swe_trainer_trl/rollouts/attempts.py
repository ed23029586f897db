"""Attempts: runs single attempts, of groups and of evaluations, until each has an end that counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

import anyio
from anyio.to_thread import run_sync

from swe_core.api.records import Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.worker import FinishedRollout, RolloutRunner
from swe_trainer_trl.rollouts.messages import ENGINE_LOST
from swe_trainer_trl.rollouts.metrics import RolloutMetrics
from swe_trainer_trl.rollouts.slots import Slots

_LOOK = 0.5
"""Seconds between two checks of the servers after a rollout failed at the engine."""


class Attempts:
    """Runs attempts in the slots of the run.

    An attempt that was interrupted, or that the death of its server made void, runs again under
    another id. One that an earlier process finished does not.

    Args:
        servers: URLs of the policy's servers.
        dead: Returns whether the server of a URL is dead; called in a thread.
        summaries: Whether the tokens of summaries are trained.
    """

    def __init__(
        self,
        runner: RolloutRunner,
        tally: RolloutMetrics,
        servers: Collection[str],
        dead: Callable[[str], bool],
        *,
        summaries: bool,
    ) -> None:
        self._runner = runner
        self._tally = tally
        self._dead = dead
        self._summaries = summaries
        self._servers = set(servers)
        self._serving = anyio.Event()
        self._serving.set()
        self._losses = 0
        self._slots = Slots(runner.concurrency)
        self._earlier = {rollout.id: rollout for rollout in runner.store.rollouts()}

    def server_lost(self, url: str) -> bool:
        """Handle the death of a server: after that of the last one no attempt begins before a recovery.

        Returns:
            Whether another server is left.
        """
        self._losses += 1
        self._servers.discard(url)
        if not self._servers and self._serving.is_set():
            self._serving = anyio.Event()
        return bool(self._servers)

    def server_back(self, url: str) -> None:
        """Handle the recovery of a server."""
        self._servers.add(url)
        self._serving.set()

    async def run(
        self,
        template: RolloutRequest,
        first: str,
        attempt: int,
        *,
        evaluation: int | None = None,
        ran: Callable[[Rollout], None] = lambda rollout: None,
    ) -> FinishedRollout:
        """Return an attempt that counts.

        Args:
            template: The request to derive it from.
            first: Id of its first try.
            evaluation: As in `RolloutRequest`. Such an attempt gets the next free slot.
            ran: Called with each try that this process runs.
        """
        name = first
        for again in itertools.count(2):
            earlier = self._earlier.get(name)
            if earlier is None:
                labels = {**template.spec.labels, "swe-core.rollout": name}
                spec = template.spec.model_copy(update={"labels": labels})
                changed = {"id": name, "attempt": attempt, "spec": spec, "evaluation": evaluation}
                changed["summaries"] = self._summaries
                finished, void = await self._tried(template.model_copy(update=changed), ran)
            else:  # an earlier process finished it, but died before its journal entry
                finished = await run_sync(self._from_disk, earlier)
                void = _was_interrupted(earlier) or _failed_at_the_engine(earlier)
            if not void:
                break
            name = f"{first}-{again}"
        return finished

    async def _tried(
        self, request: RolloutRequest, ran: Callable[[Rollout], None]
    ) -> tuple[FinishedRollout, bool]:
        """Return a rollout, and whether the death of a server made it void."""
        async with self._slots.one(first=request.evaluation is not None):
            while not self._serving.is_set():  # the last server may die again before this task resumes
                await self._serving.wait()
            losses = self._losses
            finished = await self._runner.run(request)
            self._tally.rollout(finished.rollout)
            ran(finished.rollout)
        if not _failed_at_the_engine(finished.rollout):
            return finished, finished.rollout.cancelled_as == ENGINE_LOST
        void = False
        while self._losses == losses and await run_sync(self._any_dead):  # the trainer will report the death
            void = True
            await anyio.sleep(_LOOK)
        return finished, void or self._losses != losses

    def _any_dead(self) -> bool:
        return any(self._dead(url) for url in list(self._servers))

    def _from_disk(self, rollout: Rollout) -> FinishedRollout:
        scored = rollout.reward is not None
        return FinishedRollout(rollout, self._runner.store.chains(rollout.id) if scored else ())


def _was_interrupted(rollout: Rollout) -> bool:
    return rollout.outcome == "cancelled" and rollout.cancelled_as in (None, ENGINE_LOST)


def _failed_at_the_engine(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.boundary == "engine"
