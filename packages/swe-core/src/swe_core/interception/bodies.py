"""Read and parse request bodies so that a hostile body delays only its own rollout.

A body that cannot fit the context is refused by its size, before it is read. The bytes in memory are bounded,
per rollout and in total. A large body is parsed in a worker thread, after a bound on its number of values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from aiohttp import web

from swe_core.errors import ContextOverflow
from swe_core.interception.dialects.base import BadRequest, Dialect, ParsedRequest, Target
from swe_core.interception.gate import Gate
from swe_core.system.json_size import MAX_VALUES, values

T = TypeVar("T")

MAX_ARGUMENT_VALUES = 20_000
"""Values in the arguments of all calls. The event loop parses and writes them to compare calls: 50 ms."""
_INLINE = 256 * 1024
"""Bytes of a body that the event loop parses itself, in a few milliseconds."""
_SMALL = 1024 * 1024
"""Bytes of a body that never waits for bodies of other rollouts."""
_PER_TOKEN = 64
"""Bytes per token at most. Ordinary text has 3 to 9, escapes included."""
_LEAST = 1024 * 1024
"""Bytes allowed in addition to any context, for the schemas of tools."""
_PATIENCE = 30.0
"""Seconds in which a large body must arrive: others wait for it."""
_SILENCE = 5.0
"""Seconds in which at least one byte must arrive."""


class Room:
    """Limit the bytes in memory. Requests for more than the free bytes wait in order.

    Attributes:
        free: Bytes that are not taken.
        large: Lock for large bodies: one is read at a time.
    """

    def __init__(self, size: int) -> None:
        self.free = size
        self.large = anyio.Lock()
        self._turn = anyio.Lock(fast_acquire=True)
        self._given = anyio.Event()

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are free, and take them."""
        async with self._turn:
            while size > self.free:
                self._given = anyio.Event()
                await self._given.wait()
            self.free -= size

    def give(self, size: int) -> None:
        """Free `size` bytes."""
        self.free += size
        self._given.set()


class Bodies:
    """Read and parse the request bodies of one server.

    Args:
        max_body: Bytes of one body. The bodies of one rollout in memory have at most twice as many, and those
            of all rollouts at most four times as many; bodies of up to 1 MiB are not counted.
    """

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._rooms: WeakKeyDictionary[Gate, Room] = WeakKeyDictionary()
        self._large = Room(4 * max_body)
        self._parser = anyio.CapacityLimiter(1)

    @asynccontextmanager
    async def parsed_request(
        self, request: web.Request, gate: Gate, dialect: Dialect, target: Target
    ) -> AsyncIterator[tuple[bytes, ParsedRequest]]:
        """Parse a request, and yield it with a key that is equal for requests of the same path and bytes.

        The body counts as held until the context is left.

        Raises:
            ContextOverflow: The body is too large for the context. The gate records it.
            EngineError, RolloutOver: The body is too large, and the rollout has failed or ended.
            BadRequest: The body is not a request of the dialect, or is large and has too many values.
            HTTPRequestEntityTooLarge: The body has more than `max_body` bytes.
            HTTPRequestTimeout: The body is large and did not arrive in time.
            RequestPayloadError: The body is not encoded as its headers say.
        """
        bound, context = self._max_body, gate.context
        if context is not None:
            bound = min(bound, _allowed(context))
        try:
            kept = dialect.kept(target.memory)
            async with self._taken(request, gate, bound, partial(_ask, dialect, target), kept) as asked:
                yield asked
        except _TooLarge as error:
            if context is None or error.size <= _allowed(context):
                raise self._refused(error) from None
            # Also for one above `max_body`: on this answer agents compact their history.
            overflow = ContextOverflow(max(context, error.size // _PER_TOKEN), context, or_more=True)
            gate.overflow(overflow)
            raise overflow from None

    @asynccontextmanager
    async def raw_body(self, request: web.Request, gate: Gate) -> AsyncIterator[bytes]:
        """Yield the request's body. Raises as `parsed_request` does, except for `ContextOverflow`."""
        try:
            async with self._taken(request, gate, self._max_body, bytes) as body:
                yield body
        except _TooLarge as error:
            raise self._refused(error) from None

    def _refused(self, error: _TooLarge) -> web.HTTPException:
        return web.HTTPRequestEntityTooLarge(max_size=self._max_body, actual_size=error.size)

    @asynccontextmanager
    async def _taken(
        self,
        request: web.Request,
        gate: Gate,
        bound: int,
        parse: Callable[[bytearray], T],
        kept: int = 0,
    ) -> AsyncIterator[T]:
        # The length of a compressed body says nothing.
        length = None if "Content-Encoding" in request.headers else request.content_length
        if length is not None and length > bound:
            raise _TooLarge(length)
        room = self._room(gate)
        most = 2 * self._max_body
        held = min(most, kept + (bound if length is None else length))
        await room.take(held)
        try:
            async with AsyncExitStack() as reading:
                raw = bytearray()
                await _read(request, raw, min(_SMALL, bound))
                is_large = len(raw) <= bound and not request.content.at_eof()
                if is_large or kept > _SMALL:
                    await reading.enter_async_context(room.large)  # a rollout waits for its own bodies first
                if is_large:
                    await self._large.take(held)
                    reading.callback(self._large.give, held)
                    with anyio.move_on_after(_PATIENCE) as clock:
                        await _read(request, raw, bound, _SILENCE)
                    if clock.cancelled_caught:
                        raise web.HTTPRequestTimeout(text=f"the body did not come within {_PATIENCE:g} s")
                if len(raw) > bound:
                    raise _TooLarge(len(raw))
                parsed = await self._parsed(raw, parse, kept)
                needed = min(most, kept + len(raw))
                room.give(held - needed)
                held = needed
                del raw  # frees the bytes during the call
            yield parsed
        finally:
            room.give(held)

    def _room(self, gate: Gate) -> Room:
        room = self._rooms.get(gate)
        if room is None:
            room = self._rooms[gate] = Room(2 * self._max_body)
        return room

    async def _parsed(self, raw: bytearray, parse: Callable[[bytearray], T], kept: int) -> T:
        size = kept + len(raw)
        if size <= _INLINE:
            return parse(raw)
        limiter = self._parser if size > _SMALL else None
        return await anyio.to_thread.run_sync(_parse_large, raw, parse, limiter=limiter)


class _TooLarge(Exception):
    """The body has `size` bytes or more."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _allowed(context: int) -> int:
    """Return the bytes of a body whose prompt may fit a context of that many tokens."""
    return max(_LEAST, _PER_TOKEN * context)


async def _read(request: web.Request, raw: bytearray, until: int, silence: float = math.inf) -> None:
    """Append the body to `raw`, until `raw` has more than `until` bytes or the body ends.

    Raises:
        HTTPRequestTimeout: No byte arrived for `silence` seconds.
    """
    while len(raw) <= until:
        with anyio.move_on_after(silence) as clock:
            piece = await request.content.readany()
        if clock.cancelled_caught:
            raise web.HTTPRequestTimeout(text=f"nothing of the body came for {silence:g} s")
        if not piece:
            return
        raw += piece


def _parse_large(raw: bytearray, parse: Callable[[bytearray], T]) -> T:
    if len(raw) > _INLINE and values(raw) > MAX_VALUES:
        raise BadRequest(
            f"the request body has more than {MAX_VALUES} values; send fewer messages, tools and lists"
        )
    return parse(raw)


def _ask(dialect: Dialect, target: Target, raw: bytearray) -> tuple[bytes, ParsedRequest]:
    asked = dialect.parse(raw, target)
    arguments = [*_arguments(asked)]
    most = sum(map(len, arguments))  # a value has a character at least
    if most > MAX_ARGUMENT_VALUES and sum(map(values, arguments)) > MAX_ARGUMENT_VALUES:
        raise BadRequest(
            f"the arguments of all 'tool_calls' have more than {MAX_ARGUMENT_VALUES} values; send fewer"
        )
    path = "\n".join((target.route.path, *target.params.values(), "")).encode()
    return hashlib.sha256(path + raw).digest(), asked


def _arguments(asked: ParsedRequest) -> Iterator[bytes]:
    """Return the arguments of all calls, which are JSON texts inside JSON."""
    for message in asked.messages:
        for call in message.get("tool_calls") or ():
            yield call["function"]["arguments"].encode()
