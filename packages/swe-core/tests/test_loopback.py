"""LoopbackServer: what it leaves when it closes."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterable

import pytest
from aiohttp import web

from swe_core.testing.loopback import LoopbackServer


class Silent(LoopbackServer):
    def routes(self) -> Iterable[web.RouteDef]:
        return ()


async def connected(steps: int) -> None:
    """A client connects, and the server closes so many steps of the loop later."""
    with socket.socket() as client:
        client.setblocking(False)
        async with Silent() as server:
            client.connect_ex(("127.0.0.1", int(server.origin.rpartition(":")[2])))
            for _ in range(steps):
                await asyncio.sleep(0)


@pytest.mark.filterwarnings("error")
def test_a_connection_that_comes_while_it_closes_is_closed() -> None:
    for steps in range(5):
        asyncio.run(connected(steps))
    gc.collect()  # which tells of a socket that nobody closed
