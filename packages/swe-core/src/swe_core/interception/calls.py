"""Call: one generation with any number of listeners. Calls: the call that answers a repeated request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio

from swe_core.api.engine import Completion, Delta
from swe_core.errors import EngineProtocolError

OVER = "the rollout ended before the reply was complete"
_KEPT = 8
"""Finished calls of a rollout that are kept for repeats: sub-agents may wait for several replies."""


class RolloutOver(Exception):
    """The rollout ended before the call began, or was unregistered during the call."""


class Call:
    """One generation, in a task of its own, so that a repeated request can take it over.

    Attributes:
        scope: Cancel scope of the generation.
        outcome: The complete reply or its error; None while the engine generates.
        delivered: Whether a client received the complete reply.
        abandoned: Whether the last listener left before the end, which cancels the generation.
        early: Whether it began before the policy had said anything.
        announced: Whether the agent's plugin says that the agent begins such conversations.
        late: Whether only processes asked for it that began after the agent's first answer.
        ended: Set at the end.
    """

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.outcome: Completion | Exception | None = None
        self.delivered = False
        self.abandoned = False
        self.early = False
        self.announced = False
        self.late = False
        self.ended = anyio.Event()
        self._pieces: list[Delta] = []
        self._listeners = 0
        self._news = anyio.Event()

    async def emit(self, delta: Delta) -> None:
        """Append a piece of the reply; see `Engine.complete`. Slow listeners read the log later.

        Pieces after the end are ignored.

        Raises:
            EngineProtocolError: The piece is invalid.
        """
        if not isinstance(delta, Mapping):
            raise EngineProtocolError(
                f"the engine sent {type(delta).__name__} as a piece of a reply, expected a mapping"
            )
        if self.outcome is None:
            self._pieces.append(delta)
            self._notify()

    def end(self, outcome: Completion | Exception) -> None:
        """End the reply."""
        self.outcome = outcome
        self._pieces = []  # listeners have them; a later listener gets the complete reply
        self.ended.set()
        self._notify()

    def deliver(self) -> None:
        """Note that a client received the complete reply."""
        self.delivered = True

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Count as a listener while the context is open."""
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
        """Return the pieces until now; none after the end."""
        return self._pieces

    def _notify(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


class Listener:
    """The position of one request in the reply."""

    def __init__(self, call: Call, pieces: Sequence[Delta]) -> None:
        self._call = call
        self._pieces = pieces
        self._heard = 0

    async def next(self) -> Sequence[Delta]:
        """Wait for the pieces since the last call, from the first one on; none once the reply has ended."""
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
        """Return the call that answers another request of the same bytes; None for a new call.

        A client that has the complete reply and repeats the request without a retry header gets a new reply.

        Args:
            retried: Whether the client marks the request as a retry.
        """
        call = self._calls.get(key)
        if call is None or call.abandoned or isinstance(call.outcome, Exception):
            return None
        return call if retried or not call.delivered else None

    def add(self, key: bytes, call: Call) -> None:
        """Keep `call`, and only the latest of the finished calls."""
        self._calls.pop(key, None)
        finished = [key for key, call in self._calls.items() if call.outcome is not None]
        for old in finished[: max(0, len(finished) - _KEPT + 1)]:
            del self._calls[old]
        self._calls[key] = call
