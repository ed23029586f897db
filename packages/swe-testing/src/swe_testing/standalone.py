"""A local service in a process of its own, which its standard input controls."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import anyio


class Service(Protocol):
    """A local service with faults."""

    faults: Any
    calls: Counter[str]

    def environment(self) -> dict[str, str]:
        """Return the environment of a client."""
        ...


S = TypeVar("S", bound=Service)


async def serve(opening: AbstractAsyncContextManager[S]) -> None:
    """Serve until stdin ends.

    The first line of stdout is the environment of a client, as JSON. Each line of stdin is an object of the
    service's `Faults` to set; the answer is one line: how often each route was called since the last line.
    """
    async with opening as server:
        _tell(server.environment())
        async for line in anyio.wrap_file(sys.stdin):
            for name, value in json.loads(line).items():
                setattr(server.faults, name, value)
            _tell(server.calls)
            server.calls.clear()


def _tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
