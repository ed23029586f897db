"""Detached work: awaited as in place, and abandoned after its grace period."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from unittest.mock import AsyncMock

import anyio
import pytest

from swe_core.errors import SandboxError
from swe_core.system import detached as module
from swe_core.system.detached import apart, closed, held

WHAT = "the work"


async def stubborn() -> None:
    """Ignores every cancellation."""
    while True:
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()


async def test_detached_returns_and_raises_as_the_work() -> None:
    fails = AsyncMock(side_effect=KeyError("four"))
    assert await apart(AsyncMock(return_value=4), WHAT) == 4
    for awaited in (apart(fails, WHAT), closed(fails, WHAT, SandboxError)):
        with pytest.raises(KeyError, match="four"):
            await awaited


async def test_detached_cancellation_waits_for_the_work() -> None:
    said: list[str] = []

    async def cleans_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            said.append("clean")

    async def ends_all_the_same() -> str:
        with anyio.CancelScope(shield=True):
            await over.wait()
        return "done"

    with anyio.CancelScope() as scope:
        scope.cancel()
        await apart(cleans_up, WHAT)
    assert scope.cancelled_caught
    assert said == ["clean"]
    over = anyio.Event()
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(over.set)
        scope.cancel()
        said.append(await apart(ends_all_the_same, WHAT))
    assert said == ["clean", "done"], "as it is where it is awaited in place"


async def test_unexpected_cancellation_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="the work ended as cancelled, but nothing cancelled it"):
        await apart(AsyncMock(side_effect=asyncio.CancelledError), WHAT)


async def test_closing_is_shielded_from_outer_cancellation() -> None:
    said: list[str] = []

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        said.append("closed")

    @asynccontextmanager
    async def context() -> AsyncIterator[int]:
        yield 1
        await close()

    with anyio.CancelScope() as scope:
        async with held(context(), WHAT, 10, SandboxError) as value:
            assert value == 1
            scope.cancel()
            await closed(close, WHAT, SandboxError)
    assert said == ["closed", "closed"]


async def test_context_that_fails_to_open_raises() -> None:
    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        raise SandboxError("no room")
        yield

    with pytest.raises(SandboxError, match="no room"):
        await AsyncExitStack().enter_async_context(held(context(), WHAT, 10, SandboxError))


async def test_cancelled_opening_closes_the_context() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        try:
            await anyio.sleep_forever()
            yield
        finally:
            said.append("closed")

    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(scope.cancel)
        async with held(context(), WHAT, 10, SandboxError):
            pass
    assert scope.cancelled_caught
    assert said == ["closed"]


def test_abandoned_work_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSING", 0.01)

    @asynccontextmanager
    async def context() -> AsyncIterator[None]:
        yield
        await stubborn()

    async def main() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await apart(stubborn, "a call")
        assert scope.cancelled_caught
        with pytest.raises(SandboxError, match=r"a close took longer than 0\.01 s"):
            await closed(stubborn, "a close", SandboxError)
        with pytest.raises(SandboxError, match=r"a box did not close within 0\.01 s"):
            async with held(context(), "a box", 0.01, SandboxError):
                pass

    anyio.run(main)


def test_twice_cancelled_work_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scope shields from the task's own cancellation, as by a trainer."""
    monkeypatch.setattr(module, "CLOSING", 3600.0)

    async def main() -> None:
        task = asyncio.create_task(apart(stubborn, WHAT))
        for _ in range(2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
