"""LoopbackServer: what the scripted servers share."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

import anyio
import anyio.lowlevel
from aiohttp import web

_MAX_BODY = 64 * 1024 * 1024


class LoopbackServer(ABC):
    """An async context manager: serves its routes on a free port of loopback while it is open. A handler is
    cancelled when its client leaves.

    Attributes:
        origin: `http://127.0.0.1:PORT`, once it is open.
    """

    def __init__(self) -> None:
        self.origin = ""
        self._runner: web.AppRunner | None = None
        self._listening: socket.socket | None = None

    @abstractmethod
    def routes(self) -> Iterable[web.RouteDef]:
        """What it serves."""

    def application(self) -> web.Application:
        """What its routes are added to, anew each time that it opens."""
        return web.Application(client_max_size=_MAX_BODY)

    async def __aenter__(self) -> Self:
        app = self.application()
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(self._runner, self._listening, backlog=4096).start()
        host, port = self._runner.addresses[0][:2]
        self.origin = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is None or self._listening is None:
            return
        with anyio.CancelScope(shield=True):
            # Before Python 3.13 a server that closes forgets the connection that it has just accepted
            # (github.com/python/cpython/issues/109564). So it accepts no more, and then closes.
            asyncio.get_running_loop().remove_reader(self._listening)
            await anyio.lowlevel.checkpoint()
            await self._runner.cleanup()
