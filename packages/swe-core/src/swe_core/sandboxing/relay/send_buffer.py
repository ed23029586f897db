"""What goes down: a log of bytes, kept until the other side has them, and when it is to be sent."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

ROOM = 8 << 20
"""Bytes not yet acknowledged above which no more is read from the endpoint."""


class Outbox:
    """Bytes with offsets, from the first one on that is not acknowledged."""

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
        """Is set at the next `append` or `wake`. One at a time listens."""
        self._news = anyio.Event()
        return self._news

    def wake(self) -> None:
        """Say that there is news."""
        self._news.set()

    def head(self, limit: int) -> bytes:
        """The first bytes that are kept."""
        return bytes(self._data[:limit])

    def acknowledge(self, offset: int) -> None:
        """Forget the bytes before `offset`; those already forgotten may be named again."""
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
    """When what was said is to be sent: the end of an answer at once, and what comes before it now and then.

    The first bytes of an answer go after `FIRST`, so that a short answer is one call, the next ones after
    0.5 s, 2 s, 5 s, 5 s, …. Besides, such calls cost tokens of a bucket: so 20 answers a minute are at most
    60 calls with those for the ends and for the pulls.

    Args:
        clock: Seconds.
    """

    FIRST = 0.02
    """Seconds."""
    BURST = 4
    """Tokens of a full bucket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.refill = 2.0
        """Seconds until there is a token more."""
        self._clock = clock
        self._filled = clock() - self.refill * self.BURST
        self._steps: dict[int, int] = {}
        self._after: dict[int, float] = {}
        self._unsent: dict[int, float] = {}
        self.urgent = False
        """Whether an end is to be sent."""

    def more(self, id: int) -> None:
        """A part of the answer `id` was said."""
        if id not in self._unsent:
            now = self._clock()
            self._unsent[id] = max(now, self._after.setdefault(id, now + self.FIRST))

    def over(self, id: int) -> None:
        """The end of the answer `id` was said."""
        self.urgent = True
        self.forget(id)

    def forget(self, id: int) -> None:
        """Nobody waits for the answer `id` any more."""
        for known in (self._unsent, self._steps, self._after):
            known.pop(id, None)

    def slow_down(self) -> None:
        """Pulls are many from now on, one for each request."""
        self.refill = 5.0

    def due(self) -> float:
        """When to send, by the clock; infinity when there is nothing to send."""
        if self.urgent:
            return -math.inf
        if not self._unsent:
            return math.inf
        return max(min(self._unsent.values()), self._filled + self.refill)

    def sent(self) -> None:
        """All that was said so far is being sent."""
        now = self._clock()
        if not self.urgent:
            self._filled = max(self._filled, now - self.refill * self.BURST) + self.refill
        self.urgent = False
        for id in self._unsent:
            step = self._steps.get(id, 0)
            self._steps[id] = step + 1
            self._after[id] = now + min(0.5 * 4.0 ** min(step, 8), 5.0)
        self._unsent.clear()
