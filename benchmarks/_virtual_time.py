"""An event loop in which nobody waits: where it would sleep, its clock jumps to the next event."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Finds what is ready, and never waits for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("all tasks wait for each other: a deadlock")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs on a clock of its own, from 0. Nothing may come from outside: no threads, no network."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now


def run(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """`anyio.run` in virtual time."""
    return anyio.run(function, *arguments, backend_options={"loop_factory": VirtualLoop})
