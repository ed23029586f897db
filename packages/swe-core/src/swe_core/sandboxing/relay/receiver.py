"""Receiver: receive what the program inside sends, each byte once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import anyio
import anyio.lowlevel

from swe_core.sandboxing.relay.frames import (
    MAX_PROOF,
    Gone,
    Imposture,
    ProtocolError,
    Question,
    RequestFrame,
    Unpacker,
    Unproven,
)
from swe_core.sandboxing.relay.timing import Backoff, Timing
from swe_core.sandboxing.relay.transport import Transport, TransportError

_STRIKES = 2
_WORTH_A_WORD = 5
_LONGEST = 2 << 20
_SLICE = 1 << 16
_SIGNS = 1000.0
"""Signs of life that may arrive together: one per tick of a stream, and one per poll."""
_SIGNS_A_SECOND = 100.0
_IMPOSTURES = 20
"""Consecutive answers without a proof after which the program is started again."""

log = logging.getLogger(__name__)


class Receiver:
    """Read the log of one run of the program inside, from where the last pull broke off.

    Args:
        take: Called with each frame and its payload.
        opened: Called whenever the program inside has proved its identity.
        failed: Called with each failure, before the retry.
        buffered: Called when a proxy turns out to hold answers back until they are complete.

    Attributes:
        taken: Offset up to which the log has been read.
    """

    def __init__(
        self,
        transport: Transport,
        secret: bytes,
        timing: Timing,
        *,
        take: Callable[[RequestFrame | Gone, bytes], None],
        opened: Callable[[], None],
        failed: Callable[[TransportError], None],
        buffered: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._secret = secret
        self._timing = timing
        self._take = take
        self._opened = opened
        self._failed = failed
        self._buffered = buffered
        self._frames = Unpacker()
        self._polls = False
        self._strikes = 0
        self._signs = 0.0  # above the expected number; falls with time
        self._signs_at = -math.inf
        self.taken = 0

    async def run(self) -> None:
        """Pull until cancelled.

        Raises:
            ProtocolError: The data is no frame.
            Imposture: Another program answers.
            SandboxDied: The sandbox has exited.
        """
        backoff = Backoff(self._timing)
        failures = impostures = 0
        while True:
            before = self.taken
            try:
                if self._polls:
                    await self._poll(self._timing.poll)
                else:
                    await self._stream()
                if self.taken == before:
                    raise TransportError("a pull ended at once")
            except TransportError as error:
                self._failed(error)
                impostures = impostures + 1 if isinstance(error, Unproven) else 0
                if impostures >= _IMPOSTURES:
                    raise Imposture(f"the relay inside is not ours any more: {error}") from error
                if self.taken > before:
                    failures = 0
                    backoff.reset()
                failures += 1
                if failures == _WORTH_A_WORD:
                    log.warning("a relay is out of reach and is tried again and again: %s", error)
                await anyio.sleep(backoff.pause())
            else:
                failures = impostures = 0
                backoff.reset()

    async def _stream(self) -> None:
        question = self._question(self._timing.hold, stream=1)
        proved = False
        with anyio.move_on_after(self._timing.patience) as alive:
            async with self._transport.pull(question.path, question.headers) as chunks:
                opening = b""
                async for chunk in chunks:
                    alive.deadline = anyio.current_time() + self._timing.tick + self._timing.patience
                    if not proved:
                        opening += chunk
                        proof, proved, chunk = _split(opening)
                        if not proved:
                            continue
                        question.check(proof)
                        self._opened()
                    alive.deadline = math.inf  # what waits now is this side
                    await self._feed(chunk)
                    alive.deadline = anyio.current_time() + self._timing.tick + self._timing.patience
        if alive.cancelled_caught:
            await self._silent(proved)
        else:
            self._strikes = 0

    async def _silent(self, proved: bool) -> None:
        """Find out why nothing arrived: a proxy holds it back, or the transport is broken."""
        self._strikes += 1
        if proved and self._strikes < _STRIKES:
            raise TransportError("a pull fell silent")
        await self._poll(0.0)
        self._polls = True
        self._buffered()

    async def _poll(self, hold: float) -> None:
        question = self._question(hold, stream=0)
        answer = bytearray()
        try:
            with anyio.fail_after(hold + self._timing.push):
                async with self._transport.pull(question.path, question.headers) as chunks:
                    async for chunk in chunks:
                        answer += chunk
                        if len(answer) > _LONGEST:
                            raise TransportError("a poll brought more than was asked for")
        except TimeoutError:
            raise TransportError("a poll was not answered in time") from None
        body = question.opened(bytes(answer))
        self._opened()
        await self._feed(body)

    def _question(self, hold: float, stream: int) -> Question:
        return Question(self._secret, f"/pull?from={self.taken}&hold={hold:g}&stream={stream}")

    async def _feed(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE):
            piece = data[start : start + _SLICE]
            self.taken += len(piece)
            signs = self._frames.signs
            for frame, payload in self._frames.feed(piece):
                self._take(frame, payload)
            self._count(self._frames.signs - signs)
            await anyio.lowlevel.checkpoint()  # other rollouts share this loop

    def _count(self, signs: int) -> None:
        now = anyio.current_time()
        self._signs = max(self._signs - (now - self._signs_at) * _SIGNS_A_SECOND, 0.0) + signs
        self._signs_at = now
        if self._signs > _SIGNS:
            raise ProtocolError("the relay inside sent more signs of life than it ever has reason to")


def _split(opening: bytes) -> tuple[bytes, bool, bytes]:
    """Return the proof, whether it is complete, and the bytes after it."""
    end = opening.find(b"\n", 0, MAX_PROOF + 1)
    if end < 0 and len(opening) > MAX_PROOF:
        raise Unproven("a request to the relay inside was answered, but not by the relay")
    return opening[: max(end, 0)], end >= 0, opening[end + 1 :]
