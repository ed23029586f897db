"""Serve HTTP within a context."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
from aiohttp import web

LOOPBACK = "127.0.0.1"
_BACKLOG = 4096  # connections not yet accepted: past it the kernel resets some clients of a large wave


@asynccontextmanager
async def serve(runner: web.BaseRunner, port: int = 0, host: str = LOOPBACK) -> AsyncIterator[str]:
    """Serve `runner` and yield `http://HOST:PORT`. No connection stays open at the end.

    Args:
        runner: Runner to set up and clean up.
        port: Port; 0 selects a free one.
        host: Address or name of the interface to listen on.

    Raises:
        OSError: The port is taken, or the host is none of this machine's.
    """
    await runner.setup()
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)  # the site closes it
        await web.SockSite(runner, listening, backlog=_BACKLOG).start()
        try:
            name = f"[{host}]" if ":" in host else host
            yield f"http://{name}:{listening.getsockname()[1]}"
        finally:
            # Before Python 3.13 a closing server loses a connection that it has just accepted
            # (github.com/python/cpython/issues/109564). So stop to accept first, then close.
            asyncio.get_running_loop().remove_reader(listening)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            await runner.cleanup()
