"""The process that the program's own work runs in: its event loop, and its garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def run(function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
    """`anyio.run` on uvloop where that is installed, which answers an LLM call with a third less work."""
    return anyio.run(function, *arguments, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def settle() -> None:
    """Hide all that is loaded by now from the garbage collector. It lives as long as the process does, and
    with a tokenizer's libraries a full collection looks through half a million objects, which in a session
    with long histories costs a fifth of each LLM call."""
    gc.collect()
    gc.freeze()
