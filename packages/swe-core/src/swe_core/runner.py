"""Many rollouts: how many at once, in which order, who is told, and what happens on cancellation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio

from swe_core.errors import SweError
from swe_core.record import Rollout, Turn
from swe_core.request import Observer, Parts, Phase, RolloutRequest
from swe_core.rollout import run_rollout
from swe_core.store import RunDirectory


class Runner:
    """Runs the rollouts of one run and keeps what they end with.

    Args:
        requests: The rollouts, in the order in which they start.
        parts: The live objects that they share.
        store: Where every finished rollout is appended before anybody is told.
        observers: Told what happens: the display, the plugins.
        concurrency: Rollouts at once.
    """

    def __init__(
        self,
        requests: Sequence[RolloutRequest],
        parts: Parts,
        store: RunDirectory,
        observers: Sequence[Observer],
        concurrency: int,
    ) -> None:
        self.requests = requests
        self.store = store
        self._parts = parts
        self._observer = _Observers(observers)
        self._concurrency = concurrency

    async def run_all(self) -> None:
        """Run every request. Cancelled, it records the running rollouts as cancelled and closes them.

        Raises:
            SweError: The run directory cannot be written any more; what is finished is kept.
        """
        waiting = iter(self.requests)
        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self._concurrency, len(self.requests))):
                    group.start_soon(self._work, waiting)
        except ExceptionGroup as errors:  # the first one cancelled the others
            raise errors.exceptions[0] from None

    async def _work(self, waiting: Iterator[RolloutRequest]) -> None:
        for request in waiting:
            with self._writing():
                folder = self.store.folder(request.id)
            await run_rollout(request, self._parts, folder, self._observer, self._finish)

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
                f"{error.strerror or error}; what is finished is kept"
            ) from error


class _Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = observers

    def started(self, request: RolloutRequest) -> None:
        for observer in self._all:
            observer.started(request)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        for observer in self._all:
            observer.phase(rollout_id, phase)

    def turn(self, rollout_id: str, turn: Turn) -> None:
        for observer in self._all:
            observer.turn(rollout_id, turn)

    def finished(self, rollout: Rollout) -> None:
        for observer in self._all:
            observer.finished(rollout)
