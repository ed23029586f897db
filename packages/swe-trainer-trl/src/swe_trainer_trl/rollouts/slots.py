"""Slots: limits the number of concurrent rollouts, and lets evaluations go first."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Slots:
    """Slots of an event loop. A free one goes to the task that has waited longest, evaluations first."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._waiting: tuple[deque[anyio.Event], deque[anyio.Event]] = deque(), deque()

    @asynccontextmanager
    async def one(self, *, first: bool) -> AsyncIterator[None]:
        """Hold a slot.

        Args:
            first: Whether to go before all that wait without it.
        """
        await self._take(self._waiting[0 if first else 1])
        try:
            yield
        finally:
            self._give()

    async def _take(self, queue: deque[anyio.Event]) -> None:
        if self._free:
            self._free -= 1
            return
        given = anyio.Event()
        queue.append(given)
        try:
            await given.wait()
        except BaseException:  # cancellation
            if given.is_set():  # and the slot had just been given to it
                self._give()
            else:
                queue.remove(given)
            raise

    def _give(self) -> None:
        for queue in self._waiting:
            if queue:
                queue.popleft().set()
                return
        self._free += 1
