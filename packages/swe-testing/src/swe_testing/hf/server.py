"""LocalHF: all parts on one port."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from email.utils import format_datetime
from pathlib import Path
from typing import Self

import anyio
from aiohttp import hdrs, web

from swe_testing.hf.accounts import SCOPES, Accounts, Refused
from swe_testing.hf.faults import Faults
from swe_testing.hf.hub import Hub
from swe_testing.hf.jobs import Jobs
from swe_testing.hf.sandboxes import Sandboxes
from swe_testing.hf.spaces import Spaces
from swe_testing.loopback import LoopbackServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LocalHF(LoopbackServer):
    """Serve Jobs, Sandboxes, Hub and Spaces on a free port of loopback.

    Args:
        faults: None at first.

    Attributes:
        origin: `http://127.0.0.1:PORT`, once it is open: the client's `HF_ENDPOINT`.
        token: A valid token of the user "tester", with every scope.
        jobs: The Jobs API and the sandboxes.
        hub: Repositories.
        spaces: Spaces.
        faults: May be changed at any time.
        calls: Name of a route → number of requests.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        super().__init__()
        self.faults = faults or Faults()
        self.accounts = Accounts()
        self.token = self.accounts.add()
        self.calls: Counter[str] = Counter()
        self.hub = Hub(self.accounts)
        self.jobs = Jobs(self.accounts, self.faults, self.hub)
        self.sandboxes = Sandboxes(self.accounts, self.faults, self.jobs)
        self.spaces = Spaces(self.accounts, self.hub)
        self.home = Path()

    def add_token(self, scopes: Iterable[str] = SCOPES) -> str:
        """Return a new valid token with this permission only."""
        return self.accounts.add(scopes)

    def environment(self) -> dict[str, str]:
        """Return the environment that points a client in a subprocess here."""
        return {
            "HF_ENDPOINT": self.origin,
            "HF_TOKEN": self.token,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def routes(self) -> Iterable[web.RouteDef]:
        """See `LoopbackServer.routes`."""
        for part in (self.accounts, self.jobs, self.sandboxes, self.hub, self.spaces):
            yield from part.routes()

    def application(self) -> web.Application:
        """See `LoopbackServer.application`."""
        app = super().application()

        @web.middleware
        async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._serve(request, handler)

        async def date(request: web.Request, response: web.StreamResponse) -> None:
            response.headers[hdrs.DATE] = format_datetime(self.faults.now(), usegmt=True)

        app.middlewares.append(serve)
        app.on_response_prepare.append(date)
        return app

    async def __aenter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="swe-hf-"))
        self.jobs.home = self.home / "jobs"
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.jobs.aclose()
            await self.sandboxes.aclose()
            await super().__aexit__(*exc)
            await anyio.to_thread.run_sync(shutil.rmtree, self.home)

    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request, delay it, apply the faults."""
        route = self.sandboxes.route_of(request) or request.match_info.route.name or request.path
        self.calls[route] += 1
        await anyio.sleep(self.faults.latency)
        try:
            status = self.faults.status(route)
            if status is not None:
                raise Refused(status, f"This failure was asked for: {status}")
            response = await handler(request)
        except Refused as refused:
            response = refused.response()
        if not response.prepared:  # a stream delays its own pieces
            await anyio.sleep(self.faults.latency)
        if self.faults.loses(route) and request.transport is not None:
            request.transport.abort()
        return response
