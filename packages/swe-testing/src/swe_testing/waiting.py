"""Waiting for what tells nobody that it happened."""

from __future__ import annotations

from collections.abc import Callable

import anyio


async def until(holds: Callable[[], object], timeout: float = 120.0) -> None:
    """Ask again and again until it holds. Where there is an event, wait for the event.

    Raises:
        TimeoutError: It did not hold within `timeout` seconds.
    """
    with anyio.fail_after(timeout):
        while not holds():  # noqa: ASYNC110  # nothing tells of what is waited for
            await anyio.sleep(0.01)
