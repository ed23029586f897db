"""The log of bytes to send, kept until they are acknowledged, and the time to send them."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

ROOM = 8 << 20
"""Unacknowledged bytes above which nothing more is read from the endpoint."""


class Outbox:
    """Bytes with offsets, from the first unacknowledged one on."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._base = 0
        self._room = anyio.Event()
        self._news = anyio.Event()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def base(self) -> int:
        """The offset of the first byte that is kept."""
        return self._base

    @property
    def end(self) -> int:
        """The offset of the next byte."""
        return self._base + len(self._data)

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._data += data
        self._news.set()

    def news(self) -> anyio.Event:
        """Return an event that the next `append` or `wake` sets; for one listener."""
        self._news = anyio.Event()
        return self._news

    def wake(self) -> None:
        """Wake the listener."""
        self._news.set()

    def head(self, limit: int) -> bytes:
        """Return the first `limit` bytes that are kept."""
        return bytes(self._data[:limit])

    def acknowledge(self, offset: int) -> None:
        """Drop the bytes before `offset`, which may be dropped already."""
        del self._data[: max(offset - self._base, 0)]
        self._base = max(offset, self._base)
        if len(self._data) <= ROOM:
            self._room.set()

    async def room(self) -> None:
        """Wait while too much is kept."""
        while len(self._data) > ROOM:
            self._room = anyio.Event()
            await self._room.wait()


class Pace:
    """Decide when to send: the end of an answer at once, earlier parts at intervals.

    docs/internals/relay.md has the schedule. Calls before the end of an answer take tokens from a bucket.

    Args:
        clock: Returns seconds.
    """

    FIRST = 0.02
    """Seconds until the first bytes are sent."""
    BURST = 4
    """Tokens of a full bucket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.refill = 2.0
        """Seconds per token."""
        self._clock = clock
        self._filled = clock() - self.refill * self.BURST
        self._steps: dict[int, int] = {}
        self._after: dict[int, float] = {}
        self._unsent: dict[int, float] = {}
        self.urgent = False
        """Whether an end is to be sent."""

    def more(self, id: int) -> None:
        """Note a new part of the answer `id`."""
        if id not in self._unsent:
            now = self._clock()
            self._unsent[id] = max(now, self._after.setdefault(id, now + self.FIRST))

    def over(self, id: int) -> None:
        """Note the end of the answer `id`."""
        self.urgent = True
        self.forget(id)

    def forget(self, id: int) -> None:
        """Drop the answer `id`: its client has left."""
        for known in (self._unsent, self._steps, self._after):
            known.pop(id, None)

    def slow_down(self) -> None:
        """Prepare for one pull per request."""
        self.refill = 5.0

    def due(self) -> float:
        """Return when to send, by the clock; infinity when there is nothing to send."""
        if self.urgent:
            return -math.inf
        if not self._unsent:
            return math.inf
        return max(min(self._unsent.values()), self._filled + self.refill)

    def sent(self) -> None:
        """Note that all parts are being sent."""
        now = self._clock()
        if not self.urgent:
            self._filled = max(self._filled, now - self.refill * self.BURST) + self.refill
        self.urgent = False
        for id in self._unsent:
            step = self._steps.get(id, 0)
            self._steps[id] = step + 1
            self._after[id] = now + min(0.5 * 4.0 ** min(step, 8), 5.0)
        self._unsent.clear()
