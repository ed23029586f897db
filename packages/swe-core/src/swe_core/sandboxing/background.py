"""Task groups for the helpers of a context, such as an open sandbox or a relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def background_task_group() -> AsyncIterator[TaskGroup]:
    """Open a task group for helpers of a context; they are cancelled when its body ends, and not before.

    A group that is opened in place is cancelled with every scope around it. Shielded teardown inside still
    needs the helpers, and anyio waits busily for a task that starts in a cancelled group. So this group has a
    task of its own, in no scope.

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


@asynccontextmanager
async def helper_task_group() -> AsyncIterator[TaskGroup]:
    """Open a task group for helpers of a context: the end of its body cancels them.

    Raises:
        Exception: The body's own, as it is instead of inside an ExceptionGroup.
    """
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # raised again below, outside the task group
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed
