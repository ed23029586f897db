"""Background: an event loop in a thread of its own, in which a run is open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, ExitStack
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal

from swe_core.errors import SweError, UsageError, sentence
from swe_openenv.harness.health import Health
from swe_openenv.server.episodes import Episodes

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK = 0.5
"""Seconds between two looks at whether the program ends, for which there is no event."""


class Background:
    """Keeps a run open until `close`, or until the program ends.

    Args:
        opened: Opens the run, in the thread.
        health: Hears of it if the run closes before that.

    Raises:
        SweError: The run cannot be opened.
    """

    def __init__(self, opened: AbstractAsyncContextManager[Episodes], health: Health) -> None:
        self._health = health
        self._lock = threading.Lock()
        self._closed = False
        self._gone = threading.Event()
        self._running: set[Future[Any]] = set()
        with ExitStack() as stack:
            options = {"use_uvloop": find_spec("uvloop") is not None}
            self._portal = stack.enter_context(start_blocking_portal(backend_options=options))
            self._open, self.episodes = self._portal.start_task(self._keep, opened)
            self._stack = stack.pop_all()
        self._open.add_done_callback(self._note_end)
        # Not by atexit: Python joins anyio's worker threads before that, and they end with the event loop.
        threading.Thread(target=self._close_at_the_end, name="swe-openenv-end").start()

    async def _keep(
        self, opened: AbstractAsyncContextManager[Episodes], *, task_status: TaskStatus[Episodes]
    ) -> None:
        self._closing = anyio.Event()
        async with opened as episodes:
            task_status.started(episodes)
            await self._closing.wait()

    def start(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start a call in the event loop. Cancelling the future cancels the call; so does `close`.

        Raises:
            UsageError: It is closed.
        """
        with self._lock:
            if self._closed:
                raise UsageError("the session factory is closed: make another one")
            future = self._portal.start_task_soon(function)
            self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call in the event loop, and return the result.

        Raises:
            UsageError: It is closed.
        """
        try:
            return self.start(function).result()
        except CancelledError:
            raise UsageError("the session factory was closed during a call: make another one") from None

    def close(self) -> None:
        """Cancel what runs, and close the run."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = [*self._running]
        self._gone.set()
        for future in running:
            future.cancel()
        if not self._open.done():
            self._portal.call(self._closing.set)
        error = self._open.exception()
        if error is not None and self._health.over is None:
            logger.warning("%s", sentence(error))
        self._stack.close()

    def _note_end(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._health.stop(
                sentence(error) if isinstance(error, SweError) else f"the run failed: {error!r}"
            )

    def _close_at_the_end(self) -> None:
        while threading.main_thread().is_alive():
            if self._gone.wait(_LOOK):
                return
        self.close()
