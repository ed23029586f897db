"""Deferred: a weight transfer whose errors wait until the trainer processes have met.

In a weight sync, TRL's processes meet before and after the transfer, and gather sharded weights during it. An
error of rank 0 in between would leave the others waiting, and the next operation would meet the wrong one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from swe_trainer_trl.server.health import INTERRUPT, watched


class Deferred:
    """TRL's `WeightTransferProtocol` or `VLLMClient`, with the errors of a sync raised in its last request.

    Args:
        inner: The transfer or client.
        urls: Returns the base URLs of the servers, whose death ends a request.
    """

    def __init__(self, inner: Any, urls: Callable[[], Sequence[str]]) -> None:
        self._inner = inner
        self._urls = urls
        self._error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pause(self, *arguments: Any, **more: Any) -> None:
        """Pause the server, or keep the error."""
        self._error = None
        self._keep(lambda: self._inner.pause(*arguments, **more))

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Send the weights, or keep the error. All are gathered in either case."""
        gathered = _Gathered(iterator)
        if self._error is None:
            self._keep(lambda: self._inner.send_weights(gathered))
        for _ in gathered:
            pass

    def load_lora_adapter(self, *arguments: Any, **more: Any) -> None:
        """Load an adapter, after the processes have met.

        Raises:
            Exception: The error that was kept.
        """
        self._raise()
        with watched(*self._urls()):
            self._inner.load_lora_adapter(*arguments, **more)

    def resume(self, *arguments: Any, **more: Any) -> None:
        """Resume the server, after the processes have met.

        Raises:
            Exception: The error that was kept.
        """
        self._raise()
        with watched(*self._urls()):
            self._inner.resume(*arguments, **more)

    def _keep(self, act: Callable[[], None]) -> None:
        try:
            with watched(*self._urls()):
                act()
        except Exception as error:  # of any HTTP client
            self._error = error

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class _Gathered:
    """An iterator that can go on after an error of its consumer, also from another thread.

    Each step is a collective operation. No signal of `watched` breaks it off, which would end the generator.
    """

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [INTERRUPT])
            try:
                return next(self._inner)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
