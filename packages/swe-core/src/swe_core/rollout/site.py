"""LocalSite: runs rollouts in this process, into folders of a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from swe_core.api.agent import AgentSpec
from swe_core.api.executor import Commit, MetricsAddress
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.sandbox import Asset
from swe_core.rollout.loop import run_rollout
from swe_core.rollout.observers import Observers
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.system.redaction import scoped_secrets


@dataclass(slots=True, eq=False)
class _Running:
    """A running rollout: its cancel scope, and the reason for its cancellation."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    why: str | None = None


class LocalSite:
    """Runs rollouts in this process; see `swe_core.api.executor.RolloutSite`.

    Args:
        context: The live objects that the rollouts share.
        folders: The directory of the rollouts' folders.
        assets: What each sandbox of an agent gets from this host.
        notes: Sentences for the user.
        observers: Notified of each event, beside the observer of a call.
    """

    def __init__(
        self,
        context: RunContext,
        folders: Path,
        assets: tuple[Asset, ...] = (),
        notes: Sequence[str] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        self.notes = notes
        self._observers = observers
        self._context = context
        self._folders = folders
        self._assets = assets
        self._running: dict[str, _Running] = {}

    @property
    def metrics(self) -> MetricsAddress | None:
        gate = self._context.gate
        return MetricsAddress(gate[0].url, gate[0].token) if gate is not None else None

    @property
    def counters(self) -> bytes:
        """Return the metrics of the interception server, in Prometheus' text format; empty without one."""
        return self._context.gate[0].metrics if self._context.gate is not None else b""

    async def run(
        self, request: RolloutRequest, observer: Observer, commit: Commit, agent: AgentSpec | None = None
    ) -> None:
        context = self._context
        if agent is not None:
            context = replace(context, agent=agent, gate=context.gate if agent.dialect is not None else None)
        elif self._assets:
            spec = request.spec.model_copy(update={"assets": self._assets})
            request = request.model_copy(update={"spec": spec})
        folder = RolloutFolder(self._folders / request.id, context.redactor)
        running = self._running[request.id] = _Running()
        try:
            with scoped_secrets(), running.scope:
                observers = Observers([observer, *self._observers])
                await run_rollout(request, context, folder, observers, commit, lambda: running.why)
        finally:
            del self._running[request.id]

    def cancel(self, rollout_id: str, why: str | None) -> None:
        """See `swe_core.api.executor.Executor.cancel`.

        Args:
            why: The reason in the record; None as if the run was interrupted.
        """
        running = self._running.get(rollout_id)
        if running is not None:
            running.why = running.why or why
            running.scope.cancel()
