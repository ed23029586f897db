"""Run plugin code that may hang in a task of its own, and abandon it after a time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar, cast

import anyio

from swe_core.errors import SweError

CLOSING = 90.0
"""Seconds for cancelled work, and for work that closes something. Healthy work takes milliseconds; the
slowest provider here takes up to a minute to kill remote processes."""
SANDBOX_CLOSING = 300.0
"""Seconds to close a sandbox. Its service may be busy with hundreds, so the provider retries. An abandoned
sandbox may cost money until the next run removes it."""

T = TypeVar("T")

log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[object]] = set()
"""Running tasks. The event loop holds only weak references."""


class _Apart(Generic[T]):
    """Work in a task of its own."""

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
        """Wait until the task has ended, in any way."""
        await asyncio.wait([self._task])

    async def end(self, seconds: float) -> bool:
        """Wait, shielded, until the task has ended. Abandon it after `seconds`.

        Returns:
            Whether it has ended.
        """
        try:
            with anyio.move_on_after(seconds, shield=True):
                await self.ended()
        finally:  # no scope shields from a second cancellation of this task
            ended = self._task.done()
            if not ended:
                self._abandon(seconds)
        return ended

    def _abandon(self, seconds: float) -> None:
        log.error("%s did not end within %g s and was abandoned", self._what, seconds)
        self.cancel()
        self._task.add_done_callback(_retrieve_exception)
        asyncio.tasks._unregister_task(self._task)  # the event loop would wait for it at its own end

    def cancel(self) -> None:
        """Cancel the work without waiting."""
        self._scope.cancel()

    def result(self) -> T | None:
        """Return the result of ended work; None where `cancel` ended it.

        Raises:
            RuntimeError: The work ended as cancelled without a call of `cancel`.
        """
        if self._task.cancelled():
            if self._scope.cancel_called:
                return None
            raise RuntimeError(f"{self._what} ended as cancelled, but nothing cancelled it")
        found = self._task.result()
        return None if found is None else found[0]


async def apart(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Await `work()`. On cancellation, cancel the work, and abandon it after `CLOSING` seconds.

    Args:
        what: The work as a noun, such as "the engine's call".

    Raises:
        RuntimeError: The work ended as cancelled, but nothing cancelled it.
        Exception: The work raised it, even after cancellation.
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
    """Await `work()`, shielded from cancellation, and abandon it after `CLOSING` seconds.

    Args:
        what: The work as a noun, such as "the end of the engine's session".
        kind: Type of the error.

    Raises:
        SweError: The work did not end in time.
        Exception: The work raised it.
    """
    running = _Apart(work, what)
    if not await running.end(CLOSING):
        raise kind(f"{what} took longer than {CLOSING:g} s and was abandoned")
    running.result()


@asynccontextmanager
async def held(
    context: AbstractAsyncContextManager[T], what: str, seconds: float, kind: type[SweError]
) -> AsyncIterator[T]:
    """Hold `context` open during the body, in a task of its own.

    The context does not see the body's exceptions. Closing is shielded from cancellation.

    Args:
        what: The context as a noun, such as "the sandbox".
        seconds: Time to close, after which the context is abandoned.
        kind: Type of the error.

    Raises:
        SweError: The context did not close in time.
        Exception: Opening or closing the context raised it.
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
            raise kind(f"{what} did not close within {seconds:g} s and was abandoned")
        running.result()


def is_stray_cancellation() -> bool:
    """Return whether a caught cancellation is not this task's, but that of a task that a plugin awaits."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _retrieve_exception(task: asyncio.Task[object]) -> None:
    """Retrieve a task's exception, so that asyncio does not log it as unretrieved."""
    if not task.cancelled():
        task.exception()
