"""Sandboxes: the gateway to the servers inside, for every exposed port of a job."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import aiohttp
import anyio
from aiohttp import web
from yarl import URL

from swe_testing.hf.accounts import Accounts, Refused
from swe_testing.hf.faults import Faults
from swe_testing.hf.jobs import Job, Jobs

PORT = 49983
"""The port of the sandbox server in the client's requests."""
_PIECE = 64 * 1024
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade"}
)
_STREAMED = frozenset({"server.exec", "server.proxy"})
_AHEAD = 32
_INSIDE = aiohttp.ClientTimeout(total=None, sock_connect=10)


class Sandboxes:
    """Forward requests to the server inside a sandbox's job."""

    def __init__(self, accounts: Accounts, faults: Faults, jobs: Jobs) -> None:
        self._accounts = accounts
        self._faults = faults
        self._jobs = jobs
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._bad_gateways: Counter[str] = Counter()

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        return [web.route("*", "/jobs/{id}--{port}.local/{tail:.*}", self._pass, name="server")]

    def route_of(self, request: web.Request) -> str | None:
        """Return the name of the route inside, without the sandbox's own part of a pool's paths."""
        if request.match_info.route.name != "server":
            return None
        parts = request.match_info["tail"].split("/")
        if parts[0] == "v1":
            parts = parts[1:]
        if parts[0] == "sandboxes" and len(parts) > 2:
            parts = parts[2:]
        return f"server.{parts[0]}"

    async def aclose(self) -> None:
        """Close the connections to the servers inside."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        self._accounts.require(request, "job.read")
        job = self._jobs.jobs.get(request.match_info["id"])
        if job is None or job.ended:
            raise Refused(404, "Job not found")
        if job.stage == "SCHEDULING" or not job.socket.exists() or self._faults.never_ready:
            raise Refused(503, "The job is not ready")
        if request.match_info["port"] != str(PORT):
            raise Refused(404, "This port is not exposed")
        if self._bad_gateways[job.id]:
            self._bad_gateways[job.id] -= 1
            return web.Response(status=502, text="<html><body><h1>502 Bad Gateway</h1></body></html>")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        target = request.raw_path.split(".local", 1)[1]
        try:
            async with self._session(job).request(
                request.method,
                # Unchanged: the path must not be quoted again.
                URL(f"http://inside{target}", encoded=True),
                headers=headers,
                data=io.BytesIO(await request.read()) if request.body_exists else None,
                allow_redirects=False,
            ) as answer:
                return await self._answer(request, job, answer)
        except aiohttp.ClientError as error:
            raise Refused(502, f"The sandbox server does not answer: {error}") from None

    async def _answer(
        self, request: web.Request, job: Job, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                response.headers.add(name, value)
        response.content_length = answer.content_length
        route = self.route_of(request) or ""
        left = self._faults.drop(route) if route in _STREAMED else None
        pieces = (_whole if self._faults.buffering else _late)(answer, self._faults)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if not response.prepared:
                        await response.prepare(request)
                    if not piece:
                        continue
                    if left is not None and left <= len(piece):
                        await response.write(piece[:left])
                        self._bad_gateways[job.id] += self._faults.bad_gateways
                        _break(request)
                        return response
                    left = None if left is None else left - len(piece)
                    await response.write(piece)
        except (aiohttp.ClientError, ConnectionError):
            _break(request)  # the server inside or the client closed the connection
        return response

    def _session(self, job: Job) -> aiohttp.ClientSession:
        if job.id not in self._sessions:
            connector = aiohttp.UnixConnector(str(job.socket), limit=0)
            self._sessions[job.id] = aiohttp.ClientSession(
                connector=connector, timeout=_INSIDE, auto_decompress=False, skip_auto_headers=("User-Agent",)
            )
        return self._sessions[job.id]


def _break(request: web.Request) -> None:
    """Close the connection in mid-answer, after the written data."""
    if request.transport is not None:
        request.transport.close()


async def _whole(answer: aiohttp.ClientResponse, faults: Faults) -> AsyncGenerator[bytes, None]:
    """Yield the complete answer, delayed by one way."""
    body = await answer.read()
    await anyio.sleep(faults.latency)
    yield body


async def _late(answer: aiohttp.ClientResponse, faults: Faults) -> AsyncGenerator[bytes, None]:
    """Yield each piece, delayed by one way; first an empty one for the head."""
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[tuple[float, bytes]](_AHEAD)

    async def read() -> None:
        async with send:
            await send.send((loop.time() + faults.latency, b""))
            async for piece in answer.content.iter_any():
                await send.send((loop.time() + faults.latency, piece))

    reader = asyncio.create_task(read())
    try:
        async with receive:
            async for due, piece in receive:
                await anyio.sleep(max(0.0, due - loop.time()))
                yield piece
            await reader
    finally:
        reader.cancel()
        await asyncio.wait([reader])
