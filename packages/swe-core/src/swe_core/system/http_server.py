"""Serving on loopback, for as long as a context lasts; its end leaves no connection open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
from aiohttp import web

_BACKLOG = 4096  # connections not yet accepted: past it the kernel resets some clients of a large wave


@asynccontextmanager
async def serve(runner: web.BaseRunner, port: int = 0) -> AsyncIterator[str]:
    """Serve what `runner` runs on a port of 127.0.0.1; yields `http://127.0.0.1:PORT`.

    Args:
        runner: Is set up and cleaned up here.
        port: 0 is any free one.

    Raises:
        OSError: The port is taken.
    """
    await runner.setup()
    try:
        listening = socket.create_server(("127.0.0.1", port))  # the site closes it
        await web.SockSite(runner, listening, backlog=_BACKLOG).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            # Before Python 3.13 a server that closes forgets the connection that it has just accepted
            # (github.com/python/cpython/issues/109564). So it accepts no more, and then closes.
            asyncio.get_running_loop().remove_reader(listening)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            await runner.cleanup()
