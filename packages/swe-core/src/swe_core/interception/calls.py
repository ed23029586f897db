"""Call: one generation with any number of listeners. Calls: which of them answers a repeated request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio

from swe_core.api.engine import Completion, Delta
from swe_core.errors import EngineProtocolError

OVER = "the rollout ended before the reply was complete"
_KEPT = 8
"""Finished calls of a rollout that are kept for repeats: sub-agents may have several answers under way."""


class RolloutOver(Exception):
    """The rollout was unregistered while the call was in flight, or it had ended before the call began."""


class Call:
    """One generation. It runs in a task of its own, so that a request which repeats it can take it over.

    Attributes:
        scope: What the generation runs in.
        outcome: The whole reply, or why there is none; None while the engine generates.
        delivered: Whether a client was sent the whole reply.
        abandoned: Whether the last listener left before the end, upon which the generation is cancelled.
        ended: Set at the end.
    """

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.outcome: Completion | Exception | None = None
        self.delivered = False
        self.abandoned = False
        self.ended = anyio.Event()
        self._pieces: list[Delta] = []
        self._listeners = 0
        self._news = anyio.Event()

    async def emit(self, delta: Delta) -> None:
        """Take a piece of the reply; see `Engine.complete`. Slow listeners hold nothing up: they find it in
        the log later, and no reply is longer than the model's context. After the end nothing is taken.

        Raises:
            EngineProtocolError: It is none.
        """
        if not isinstance(delta, Mapping):
            raise EngineProtocolError(
                f"the engine sent {type(delta).__name__} as a piece of a reply, expected a mapping"
            )
        if self.outcome is None:
            self._pieces.append(delta)
            self._notify()

    def end(self, outcome: Completion | Exception) -> None:
        """There are no more pieces."""
        self.outcome = outcome
        self._pieces = []  # who listens has them; who comes later is sent the completion whole
        self.ended.set()
        self._notify()

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Count as a listener for the length of the context."""
        self._listeners += 1
        try:
            yield Listener(self, self._pieces)
        finally:
            self._listeners -= 1
            if self._listeners == 0 and self.outcome is None:
                self.abandoned = True
                self.scope.cancel()

    async def changed(self) -> None:
        """Wait for another piece, or the end."""
        await self._news.wait()

    def pieces(self) -> Sequence[Delta]:
        """What was generated so far; nothing after the end."""
        return self._pieces

    def _notify(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


class Listener:
    """One request's place in the reply that it listens to."""

    def __init__(self, call: Call, pieces: Sequence[Delta]) -> None:
        self._call = call
        self._pieces = pieces
        self._heard = 0

    async def next(self) -> Sequence[Delta]:
        """Wait for the pieces since the last time, from the first one on; none once the call has ended."""
        while self._heard == len(self._pieces) and self._call.outcome is None:
            await self._call.changed()
        pieces = self._pieces[self._heard :]
        self._heard += len(pieces)
        return pieces


class Calls:
    """The calls of one rollout that a repeated request may mean, by a digest of the request."""

    def __init__(self) -> None:
        self._calls: OrderedDict[bytes, Call] = OrderedDict()

    def find(self, key: bytes, *, retried: bool) -> Call | None:
        """The call that answers another request of the same bytes. A client that was sent a reply whole and
        asks again without a word has its reasons, such as a reply that it cannot use: it gets another one.

        Args:
            retried: Whether the client says that it asks again.
        """
        call = self._calls.get(key)
        if call is None or call.abandoned or isinstance(call.outcome, Exception):
            return None
        return call if retried or not call.delivered else None

    def add(self, key: bytes, call: Call) -> None:
        """Keep `call`, and of the finished ones the latest only."""
        self._calls.pop(key, None)
        finished = [key for key, call in self._calls.items() if call.outcome is not None]
        for old in finished[: max(0, len(finished) - _KEPT + 1)]:
            del self._calls[old]
        self._calls[key] = call
