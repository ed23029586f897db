"""Requests to several servers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def in_parallel(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of the calls, which run at the same time.

    A signal interrupts the wait, as it would a single call in this thread. The threads are daemons, so a call
    to a server that never answers does not keep the process alive.

    Raises:
        Exception: The first error, once all calls have ended.
    """
    if len(calls) == 1:
        return [calls[0]()]
    futures: list[Future[T]] = [Future() for _ in calls]
    errors: list[BaseException] = []

    def run(call: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised in the caller's thread
            errors.append(error)
            future.set_exception(error)

    for call, future in zip(calls, futures, strict=True):
        threading.Thread(target=run, args=(call, future), name="swe-parallel", daemon=True).start()
    wait(futures)
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
