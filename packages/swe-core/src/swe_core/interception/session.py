"""Gate: one rollout's way to the engine. Counts, records, and ends with the rollout."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import anyio

from swe_core.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Usage
from swe_core.errors import EngineError, RequestRefused, sentence
from swe_core.record import Turn
from swe_core.turns import RequestDiff

OVER = "the rollout ended before the reply was complete"
GONE = "the agent closed the connection before the reply was complete"


class RolloutOver(Exception):
    """The rollout was unregistered while the call was in flight, or before it began."""


class Gate:
    """What one rollout's agent calls, and what the host sees of it.

    Attributes:
        path: Path of the endpoint: the agent's base URL is the server's URL as seen from inside + `path`.
        token: The rollout's own bearer token.
        turns: Calls recorded so far, failed ones included.
        usage: Tokens of all calls so far.
        failure: The first error of the engine that ends the rollout, None while there is none. Once it is
            set no call reaches the engine any more. `RequestRefused` is not one: the agent may go on.
    """

    def __init__(self, engine: Engine, session: EngineSession, on_turn: Callable[[Turn], None]) -> None:
        self.engine = engine
        self.session = session
        self.path = f"/rollout/{quote(session.rollout_id, safe='')}/v1"
        self.token = secrets.token_urlsafe(32)
        self.turns = 0
        self.usage = Usage()
        self.failure: EngineError | None = None
        self._on_turn = on_turn
        self._diff = RequestDiff()
        self._failed = anyio.Event()
        self._in_flight: set[anyio.CancelScope] = set()
        self._closing: anyio.Event | None = None

    async def failed(self) -> EngineError:
        """Wait until the engine failed for good, and return how."""
        await self._failed.wait()
        if self.failure is None:
            raise RuntimeError("the gate says failed without a failure")
        return self.failure

    async def answer(self, body: Mapping[str, Any], emit: Emit | None = None) -> Completion:
        """Have the engine answer one request, and record it before returning.

        Raises:
            EngineError: The engine's own, or the rollout's first failure again.
            RolloutOver: `close` was called.
        """
        if self.failure is not None:
            raise self.failure
        if self._closing is not None:
            raise RolloutOver(OVER)
        with anyio.CancelScope() as scope:  # no await since the check: a close from here on sees the scope
            self._in_flight.add(scope)
            try:
                return await self._ask(body, emit)
            finally:
                self._leave(scope)
        raise RolloutOver(OVER)

    async def close(self) -> None:
        """Refuse new calls, cancel those in flight and wait for their ends. Only the server calls it."""
        self._closing = anyio.Event()
        if not self._in_flight:
            return
        for scope in self._in_flight:
            scope.cancel()
        await self._closing.wait()

    def _leave(self, scope: anyio.CancelScope) -> None:
        self._in_flight.discard(scope)
        if self._closing is not None and not self._in_flight:
            self._closing.set()

    async def _ask(self, body: Mapping[str, Any], emit: Emit | None) -> Completion:
        started_at, started = datetime.now(UTC), time.monotonic()

        def record(completion: Completion | None, error: str | None) -> None:
            self._record(body, started_at, time.monotonic() - started, completion, error)

        try:
            completion = await self.engine.complete(ChatRequest(body, body["messages"]), self.session, emit)
        except anyio.get_cancelled_exc_class():
            record(None, GONE if self._closing is None else OVER)
            raise
        except RequestRefused as refusal:
            record(None, sentence(refusal))
            raise
        except Exception as error:  # the boundary that records: whatever a plugin's engine raises
            failure = error if isinstance(error, EngineError) else EngineError(sentence(error))
            self._fail(failure)
            record(None, sentence(failure))
            raise failure from error
        record(completion, None)
        if self.failure is not None:  # recording it failed: an unrecorded reply must not reach the agent
            raise self.failure
        return completion

    def _record(
        self,
        body: Mapping[str, Any],
        started_at: datetime,
        seconds: float,
        completion: Completion | None,
        error: str | None,
    ) -> None:
        added = self._diff.added(body)
        usage = completion.usage if completion else Usage()
        turn = Turn(
            index=self.turns,
            started_at=started_at,
            seconds=round(seconds, 6),
            kept=added.kept,
            messages=added.messages,
            params=added.params,
            reply=completion.message if completion else None,
            finish_reason=completion.finish_reason if completion else None,
            usage=usage,
            error=error,
        )
        self.turns += 1
        self.usage = Usage(
            prompt_tokens=self.usage.prompt_tokens + usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens + usage.completion_tokens,
        )
        try:
            self._on_turn(turn)
        except Exception as problem:  # a disk that is full, say: the rollout is lost, and says why
            self._fail(EngineError(f"call {turn.index} could not be recorded: {sentence(problem)}"))

    def _fail(self, failure: EngineError) -> None:
        if self.failure is None:
            self.failure = failure
            self._failed.set()
