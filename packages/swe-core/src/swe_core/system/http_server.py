"""Serve HTTP on loopback within a context."""

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
    """Serve `runner` on 127.0.0.1 and yield `http://127.0.0.1:PORT`. No connection stays open at the end.

    Args:
        runner: Runner to set up and clean up.
        port: Port; 0 selects a free one.

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
            # Before Python 3.13 a closing server loses a connection that it has just accepted
            # (github.com/python/cpython/issues/109564). So stop to accept first, then close.
            asyncio.get_running_loop().remove_reader(listening)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            await runner.cleanup()
