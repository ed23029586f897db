"""Life: the check whether a sandbox still runs, shared by all that ask at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from swe_core.errors import SandboxDied


class Life:
    """Checks on demand whether a sandbox runs, and remembers its death.

    Args:
        look: Asks the service once; returns the death, or None if the sandbox runs or nobody answers.
    """

    def __init__(self, look: Callable[[], Awaitable[SandboxDied | None]]) -> None:
        self._look = look
        self._looking = anyio.Lock()
        self._looked = 0.0
        self._died: SandboxDied | None = None

    async def check(self) -> None:
        """Check that the sandbox still runs. Concurrent callers share one request.

        Raises:
            SandboxDied: The sandbox has ended.
            SandboxError: The service refuses the request.
        """
        if self._died is None:
            began = anyio.current_time()
            async with self._looking:
                if self._died is None and began >= self._looked:
                    self._died = await self._look()
                    self._looked = anyio.current_time()
        if self._died is not None:
            raise self._died
