"""The event loop and the garbage collector of the process."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def run(function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
    """Run `function` with anyio, on uvloop where installed: an LLM call then takes a third less work."""

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(_log_exception)
        return await function(*arguments)

    return anyio.run(main, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def ending_signals() -> Sequence[signal.Signals]:
    """Return the signals that end a run, without SIGHUP where it is ignored, as under `nohup`."""
    ending = [signal.SIGINT, signal.SIGTERM]
    return ending if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*ending, signal.SIGHUP]


async def until_signalled(work: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments) -> bool:
    """Work until the end, or until one of `ending_signals` cancels it. Return whether a signal did."""
    signalled = False
    problem: Exception | None = None

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal signalled
        with anyio.open_signal_receiver(*ending_signals()) as signals:
            async for _ in signals:
                signalled = True
                scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        try:
            await work(*arguments)
        except Exception as error:  # the task group would wrap it in a group
            problem = error
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return signalled


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unhandled exception, except a harmless one of anyio's.

    anyio sets the result of a cancelled future when a Unix socket becomes readable during the cancellation.
    """
    if isinstance(context.get("exception"), asyncio.InvalidStateError) and "set_result" in str(
        context.get("handle")
    ):
        return
    loop.default_exception_handler(context)


@contextmanager
def settled() -> Iterator[None]:
    """Exclude all objects that exist now from garbage collection, until the context ends.

    With a tokenizer's libraries a full collection visits half a million objects. In a session with long
    histories that costs a fifth of each LLM call.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # some libraries report remaining objects at exit
