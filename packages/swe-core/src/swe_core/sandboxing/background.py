"""A task group that lives as long as a sandbox, whatever is cancelled around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def lasting_tasks() -> AsyncIterator[TaskGroup]:
    """A task group for helpers of a context, which are cancelled when its body ends, and not before.

    A group that is opened in place is cancelled with every scope around it. What tears down there is shielded
    and still needs the helpers, and a task that is started in a cancelled group may never get on: anyio waits
    busily for a cancellation that nobody delivers any more. So this group has a task of its own, in no scope.

    Raises:
        ExceptionGroup: On leaving: a helper failed, which has cancelled the others.
    """
    group = anyio.create_task_group()
    opened, over = anyio.Event(), anyio.Event()

    async def host() -> None:
        async with group:
            opened.set()
            await over.wait()
            group.cancel_scope.cancel()

    hosting = asyncio.create_task(host())
    try:
        await opened.wait()
        yield group
    finally:
        over.set()
        with anyio.CancelScope(shield=True):
            await hosting
