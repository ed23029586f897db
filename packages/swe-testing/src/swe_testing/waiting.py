"""Wait for conditions without an event."""

from __future__ import annotations

from collections.abc import Callable

import anyio


async def until(holds: Callable[[], object], timeout: float = 120.0) -> None:
    """Poll until the condition holds. Where there is an event, wait for the event.

    Raises:
        TimeoutError: It did not hold within `timeout` seconds.
    """
    with anyio.fail_after(timeout):
        while not holds():  # noqa: ASYNC110  # the condition has no event
            await anyio.sleep(0.01)
