"""Many rollouts: how many at once, in which order, who is told, and what happens on cancellation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from swe_core.api.engine import Engine
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Observer, Phase, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import SweError, sentence
from swe_core.rollout.loop import run_rollout
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.redaction import scoped_secrets

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """A rollout that runs: how it is ended, and why it was."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    why: str | None = None


class Runner:
    """Runs the rollouts of one run and keeps what they end with.

    Attributes:
        requests: The rollouts of the run, in the order in which they start: every attempt at every task. A
            worker that needs others makes them of these, with ids of their own.
        store: Where every finished rollout is appended before anybody is told.
        concurrency: Rollouts at once.

    Args:
        parts: The live objects that they share.
        observers: Told what happens: the display, the plugins.
    """

    def __init__(
        self,
        requests: Sequence[RolloutRequest],
        parts: RunContext,
        store: RunDirectory,
        observers: Sequence[Observer],
        concurrency: int,
    ) -> None:
        self.requests = requests
        self.store = store
        self.concurrency = concurrency
        self._parts = parts
        self._observer = _Observers(observers)
        self._running: dict[str, _Running] = {}

    @property
    def engine(self) -> Engine | None:
        """What answers LLM calls; None in black-box mode, and for an agent that makes none."""
        return self._parts.gate[1] if self._parts.gate else None

    def observe(self, observer: Observer) -> None:
        """Also tell `observer` what happens."""
        self._observer.add(observer)

    async def run_all(self) -> None:
        """Run every request that the run directory has no finished rollout of. Cancelled, it records the
        running rollouts as cancelled and closes them.

        Raises:
            SweError: The run directory cannot be written any more, or the engine says that it is unfit; what
                is finished is kept.
        """
        finished = self.store.finished()
        left = [request for request in self.requests if request.id not in finished]
        waiting = iter(left)
        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self.concurrency, len(left))):
                    group.start_soon(self._work, waiting)
        except ExceptionGroup as errors:  # the first one cancelled the others
            raise errors.exceptions[0] from None

    async def run(self, request: RolloutRequest) -> FinishedRollout:
        """Run one rollout; it is recorded, whatever happens. How many run at once is the caller's to bound.

        Raises:
            SweError: The run directory cannot be written any more, or the engine says that it is unfit.
        """
        with self._writing():
            folder = self.store.folder(request.id)
        finished: list[FinishedRollout] = []

        def done(rollout: FinishedRollout) -> None:
            finished.append(rollout)
            self._finish(rollout.rollout)

        running = self._running[request.id] = _Running()
        try:
            # An OSError that leaves the loop is of the folder's files.
            with scoped_secrets(), self._writing(), running.scope:
                await run_rollout(request, self._parts, folder, self._observer, done, lambda: running.why)
        finally:
            del self._running[request.id]
        if self.engine is not None and self.engine.unfit is not None:
            raise SweError(self.engine.unfit)
        return finished[0]

    def cancel(self, rollout_id: str, why: str) -> None:
        """End a rollout that runs: its sandbox is closed at once, and it is recorded as cancelled. One that
        has its outcome already keeps it.

        Args:
            why: Stands in the record, and in the ledger as the reason for its tokens, such as "stale". The
                first one counts.
        """
        running = self._running.get(rollout_id)
        if running is not None:
            running.why = running.why or why
            running.scope.cancel()

    async def _work(self, waiting: Iterator[RolloutRequest]) -> None:
        for request in waiting:
            await self.run(request)

    def _finish(self, rollout: Rollout) -> None:
        with self._writing():
            self.store.append(rollout)
        self._observer.finished(rollout)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SweError(
                f"cannot write to the run directory {str(self.store.path)!r}: "
                f"{error.strerror or error}; what is finished is kept, and the run can be gone on with "
                "(--resume)"
            ) from error


class _Observers:
    """Several observers as one. What one of them raises is logged: no rollout is worse for being watched."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = list(observers)

    def add(self, observer: Observer) -> None:
        self._all.append(observer)

    def started(self, request: RolloutRequest) -> None:
        self._notify(lambda observer: observer.started(request))

    def phase(self, rollout_id: str, phase: Phase) -> None:
        self._notify(lambda observer: observer.phase(rollout_id, phase))

    def turn(self, rollout_id: str, turn: Turn) -> None:
        self._notify(lambda observer: observer.turn(rollout_id, turn))

    def finished(self, rollout: Rollout) -> None:
        self._notify(lambda observer: observer.finished(rollout))

    def _notify(self, call: Callable[[Observer], None]) -> None:
        for observer in self._all:
            try:
                call(observer)
            except Exception as error:  # the boundary to who only looks on
                logger.error("an observer of the run failed: %s", sentence(error), exc_info=error)
