"""LoopbackServer: the base of the scripted servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web

from swe_core.system.http_server import serve

_MAX_BODY = 64 * 1024 * 1024


class LoopbackServer(ABC):
    """Serve routes on a free port of loopback. A handler is cancelled when its client leaves.

    Attributes:
        origin: `http://127.0.0.1:PORT`, once it is open.
    """

    def __init__(self) -> None:
        self.origin = ""
        self._open = AsyncExitStack()

    @abstractmethod
    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""

    def application(self) -> web.Application:
        """Return a new application with the routes."""
        return web.Application(client_max_size=_MAX_BODY)

    async def __aenter__(self) -> Self:
        app = self.application()
        app.add_routes(self.routes())
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        self.origin = await self._open.enter_async_context(serve(runner))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()
