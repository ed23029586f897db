"""Work of plugins that may never end, though it was cancelled or is to close something: it gets a task of its
own, which is left to itself after a time, so that what waits for it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar, cast

import anyio

from swe_core.errors import SweError

CLOSING = 90.0
"""Seconds to end for what was cancelled, and for what closes something. Work that is alive takes some
milliseconds; the most that a provider of ours allows itself, to kill processes far away, is a minute."""
SANDBOX_CLOSING = 300.0
"""The same for a sandbox. Its provider asks a service, which may be busy with hundreds of them, and asks it
again; one that is left behind costs its user something until the next run removes it."""

T = TypeVar("T")

log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[object]] = set()
"""Those that run: the event loop itself would forget a task that nobody holds."""


class _Apart(Generic[T]):
    """Work that runs in a task of its own."""

    def __init__(self, work: Callable[[], Awaitable[T]], what: str) -> None:
        self._what = what
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._run(work))
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    async def _run(self, work: Callable[[], Awaitable[T]]) -> tuple[T] | None:
        with self._scope:
            return (await work(),)
        return None

    async def ended(self) -> None:
        """Wait for the end, of whatever kind."""
        await asyncio.wait([self._task])

    async def end(self, seconds: float) -> bool:
        """Wait for the end, shielded, for so long at most, upon which the work is left to itself.

        Returns:
            Whether it has ended.
        """
        try:
            with anyio.move_on_after(seconds, shield=True):
                await self.ended()
        finally:  # also where the task itself is cancelled once more, which no scope shields from
            ended = self._task.done() or self._left(seconds)
        return ended

    def _left(self, seconds: float) -> bool:
        """Leave the work to itself; False."""
        log.error("%s did not end within %g s, so it is left to itself", self._what, seconds)
        self.cancel()
        self._task.add_done_callback(_hear)
        asyncio.tasks._unregister_task(self._task)  # the event loop would wait for it at its own end
        return False

    def cancel(self) -> None:
        """Cancel it, and wait for nothing."""
        self._scope.cancel()

    def result(self) -> T | None:
        """What the work returned; None where it ended because it was cancelled. Only after its end.

        Raises:
            RuntimeError: It says that it was cancelled, and was not.
        """
        if self._task.cancelled():
            if self._scope.cancel_called:
                return None
            raise RuntimeError(f"{self._what} ended as if it had been cancelled, which nobody did")
        found = self._task.result()
        return None if found is None else found[0]


async def apart(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Await `work()`. Cancelled, it cancels the work, which has `CLOSING` seconds to end before it is left to
    itself.

    Args:
        what: The work as a noun, such as "the engine's call".

    Raises:
        RuntimeError: The work says that it was cancelled, and was not.

    Besides it raises what the work raises, also where that was cancelled.
    """
    running = _Apart(work, what)
    try:
        await running.ended()
    except asyncio.CancelledError:
        running.cancel()
        found = running.result() if await running.end(CLOSING) else None
        if found is None:
            raise
        return found
    return cast(T, running.result())


async def closed(work: Callable[[], Awaitable[object]], what: str, kind: type[SweError]) -> None:
    """Await `work()` whatever is cancelled around it, for `CLOSING` seconds; then it is left to itself.

    Args:
        what: The work as a noun, such as "the end of the engine's session".

    Raises:
        SweError: It did not end in time; of the given kind.

    Besides it raises what the work raises.
    """
    running = _Apart(work, what)
    if not await running.end(CLOSING):
        raise kind(f"{what} took longer than {CLOSING:g} s, so it was left to itself")
    running.result()


@asynccontextmanager
async def held(
    context: AbstractAsyncContextManager[T], what: str, seconds: float, kind: type[SweError]
) -> AsyncIterator[T]:
    """Hold `context` open for the length of the body. It does not see what the body raises, and is closed
    whatever is cancelled around it, for so many seconds; then it is left to itself.

    Args:
        what: The context as a noun, such as "the sandbox".

    Raises:
        SweError: It did not close in time; of the given kind.

    Besides it raises what opening or closing the context raises.
    """
    opened, over = anyio.Event(), anyio.Event()
    found: list[T] = []

    async def hold() -> None:
        try:
            async with context as value:
                found.append(value)
                opened.set()
                await over.wait()
        finally:
            opened.set()

    running = _Apart(hold, what)
    try:
        await opened.wait()
    except asyncio.CancelledError:
        running.cancel()
        if await running.end(seconds):
            running.result()
        raise
    try:
        if found:
            yield found[0]
    finally:
        over.set()
        if not await running.end(seconds):
            raise kind(f"{what} did not close within {seconds:g} s, so it was left to itself")
        running.result()


def nobody_cancelled() -> bool:
    """Whether the cancellation that was just caught came out of nowhere, as where a plugin awaits a task that
    was cancelled."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _hear(task: asyncio.Task[object]) -> None:
    """Take what was left raised, so that nobody complains that it was not heard."""
    if not task.cancelled():
        task.exception()
