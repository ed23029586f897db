"""How long the sandboxes of a rollout stand open: a provider that passes all on and looks at the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic

from swe_core.api.records import Purpose, SandboxTime
from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxProvider, SandboxSpec
from swe_core.errors import SandboxError
from swe_core.system.detached import SANDBOX_CLOSING, held


class TimedProvider:
    """`inner`, with the time that its sandboxes stood open.

    From when a sandbox was open until it was closed: waiting for a place or for a pull costs nothing.

    Args:
        purpose: What all of them are opened for.
    """

    def __init__(self, inner: SandboxProvider, purpose: Purpose) -> None:
        self._inner = inner
        self._purpose = purpose
        self._spent: dict[str | None, tuple[int, float]] = {}

    @property
    def spent(self) -> tuple[SandboxTime, ...]:
        """Of the sandboxes that are closed, by flavor."""
        return tuple(
            SandboxTime(purpose=self._purpose, flavor=flavor, sandboxes=count, seconds=round(seconds, 4))
            for flavor, (count, seconds) in self._spent.items()
        )

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`. It waits `SANDBOX_CLOSING` seconds for a sandbox to close.

        Raises:
            SandboxError: It did not, or has a flavor that is no name.
        """
        opened: tuple[str | None, float] | None = None
        try:
            async with held(self._inner.open(spec), "the sandbox", SANDBOX_CLOSING, SandboxError) as sandbox:
                if not isinstance(sandbox.flavor, str | None):
                    raise SandboxError(f"the flavor of a sandbox is {sandbox.flavor!r}, expected a name")
                opened = sandbox.flavor, monotonic()
                yield sandbox
        finally:
            if opened is not None:
                flavor, began = opened
                count, seconds = self._spent.get(flavor, (0, 0.0))
                self._spent[flavor] = count + 1, seconds + monotonic() - began

    def notes(self) -> Sequence[str]:
        """See `SandboxProvider.notes`."""
        return self._inner.notes()

    async def list(self) -> Sequence[SandboxEntry]:
        """See `SandboxProvider.list`."""
        return await self._inner.list()

    async def reap(self) -> int:
        """See `SandboxProvider.reap`."""
        return await self._inner.reap()
