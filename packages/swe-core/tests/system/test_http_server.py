"""serve: what it leaves when it closes."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from aiohttp import web

from swe_core.interception.server import InterceptionServer
from swe_core.system.http_server import serve


def plain() -> AbstractAsyncContextManager[str]:
    return serve(web.AppRunner(web.Application(), shutdown_timeout=0.1))


@asynccontextmanager
async def interception() -> AsyncIterator[str]:
    async with InterceptionServer() as server:
        yield server.url


async def connected(steps: int, opened: AbstractAsyncContextManager[str]) -> None:
    """A client connects, and the server closes so many steps of the loop later."""
    with socket.socket() as client:
        client.setblocking(False)
        async with opened as origin:
            client.connect_ex(("127.0.0.1", int(origin.rpartition(":")[2])))
            for _ in range(steps):
                await asyncio.sleep(0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("server", [plain, interception])
@pytest.mark.slow
def test_connection_during_close_is_closed(server: Callable[[], AbstractAsyncContextManager[str]]) -> None:
    for steps in range(5):
        asyncio.run(connected(steps, server()))
    gc.collect()  # which reports a socket that was not closed
