"""Opening: a blocking call that makes something which costs money, with safe cancellation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from swe_sandbox_hf.client import Client

T = TypeVar("T")

_ROUND = 1.0
"""Seconds between two attempts to cancel what an abandoned call has made."""


class Opening(Generic[T]):
    """Makes something in a thread. A failure or a cancellation leaves nothing behind.

    Args:
        make: Blocking. Returns when the thing is ready.
        cancel: Destroys what `make` has made, if the service knows it yet. `make` then fails soon.
    """

    def __init__(self, client: Client, make: Callable[[], T], cancel: Callable[[], Awaitable[None]]) -> None:
        self._client = client
        self._make = make
        self._cancel = cancel
        self._over = anyio.Event()
        self._made: list[T] = []
        self._failure: Exception | None = None

    async def run(self) -> T:
        """Return the result of `make`.

        Raises:
            Exception: The error of `make`, raised after `cancel`.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work)
            try:
                await self._over.wait()
            except BaseException:  # also cancellation: clean up, then raise
                with anyio.CancelScope(shield=True):
                    await self._give_up()
                raise
        if self._failure is None:
            return self._made[0]
        with anyio.CancelScope(shield=True):
            await self._cancel()
        raise self._failure

    async def _work(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                self._made.append(await self._client.unhurried(self._make))
            except Exception as error:  # `run` raises it unchanged
                self._failure = error
            finally:
                self._over.set()

    async def _give_up(self) -> None:
        while not self._over.is_set():
            await self._cancel()
            with anyio.move_on_after(_ROUND):
                await self._over.wait()
        await self._cancel()
