"""Sender: send data to the program inside, each byte once."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from swe_core.sandboxing.relay.frames import ProtocolError, Question
from swe_core.sandboxing.relay.send_buffer import Outbox, Pace
from swe_core.sandboxing.relay.timing import Backoff, Timing
from swe_core.sandboxing.relay.transport import Transport, TransportError

BATCH = 1 << 20
"""Bytes of a push; the program inside takes no more."""
_SMALLEST = 1 << 14
_AT_ONCE = 4
_OFFSET = re.compile(rb"[0-9]{1,18}")


class Sender:
    """Send the log of one outbox when its pace says so.

    Each push carries all unacknowledged bytes, so pushes with an end need not wait for others under way: the
    program inside ignores what it has.

    Args:
        taken: Returns the offset up to which the program's own log has been read: it may drop what is before.
    """

    def __init__(
        self,
        transport: Transport,
        secret: bytes,
        timing: Timing,
        outbox: Outbox,
        pace: Pace,
        taken: Callable[[], int],
    ) -> None:
        self._transport = transport
        self._secret = secret
        self._timing = timing
        self._outbox = outbox
        self._pace = pace
        self._taken = taken
        self._backoff = Backoff(timing)
        self._goal = 0  # offset up to which to send now
        self._sent = 0  # offset up to which all is under way
        self._under_way = 0
        self._limit = BATCH
        self._not_before = -math.inf

    async def run(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """Push until cancelled; `start` starts a task."""
        while True:
            news = self._outbox.news()
            when = self._when()
            if when > anyio.current_time():
                with anyio.CancelScope(deadline=when):
                    await news.wait()
                continue
            if self._pace.due() <= anyio.current_time():
                self._goal = self._outbox.end
                self._pace.sent()
            at, body = self._outbox.base, self._outbox.head(self._limit)
            self._sent = max(self._sent, at + len(body))
            self._under_way += 1
            start(partial(self._push, at, body))

    def _when(self) -> float:
        """Return the start of the next push, if known."""
        whole = len(self._outbox) <= self._limit
        if self._under_way and not (self._pace.urgent and whole and self._under_way < _AT_ONCE):
            return math.inf  # the end of a push wakes us
        if self._sent < self._goal:
            return self._not_before
        return max(self._pace.due(), self._not_before)

    async def _push(self, at: int, body: bytes) -> None:
        question = Question(self._secret, f"/push?at={at}&up={self._taken()}", body)
        try:
            with anyio.fail_after(self._timing.push):
                answer = await self._transport.push(question.path, body, question.headers)
            offset = question.opened(answer)
        except (TransportError, TimeoutError):
            self._sent = self._outbox.base
            self._limit = max(self._limit // 2, _SMALLEST)
            self._not_before = anyio.current_time() + self._backoff.pause()
        else:
            if not _OFFSET.fullmatch(offset):
                raise ProtocolError("the relay inside answered a push without a number")
            have = int(offset)
            if not at + len(body) <= have <= self._outbox.end:
                raise ProtocolError(
                    f"the relay inside took {have} bytes, and none of what was sent ends there"
                )
            self._outbox.acknowledge(have)
            self._limit = min(self._limit * 2, BATCH)
            self._backoff.reset()
        finally:
            self._under_way -= 1
            self._outbox.wake()
