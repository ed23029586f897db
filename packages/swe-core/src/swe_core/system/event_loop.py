"""The process that the program's own work runs in: its event loop, and its garbage collector."""

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
    """`anyio.run` on uvloop where that is installed, which answers an LLM call with a third less work."""

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(_log_exception)
        return await function(*arguments)

    return anyio.run(main, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def ending_signals() -> Sequence[signal.Signals]:
    """The signals that end a run. Where SIGHUP is ignored, as under `nohup`, it stays so: the run outlives
    its terminal."""
    ending = [signal.SIGINT, signal.SIGTERM]
    return ending if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*ending, signal.SIGHUP]


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the loop does with an exception that nobody waits for, but not with this one: anyio lets a Unix
    socket that becomes readable in the moment of a cancellation set the result of the cancelled future."""
    if isinstance(context.get("exception"), asyncio.InvalidStateError) and "set_result" in str(
        context.get("handle")
    ):
        return
    loop.default_exception_handler(context)


@contextmanager
def settled() -> Iterator[None]:
    """Hide all that is loaded by now from the garbage collector, for the length of the context. With a
    tokenizer's libraries a full collection looks through half a million objects, which in a session with long
    histories costs a fifth of each LLM call."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # libraries count what is left at the exit, and complain
