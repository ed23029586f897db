"""`reach_by_bridge`: the pull relay for sandboxes into which nothing but commands leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpcore
import httpx
from anyio.abc import ByteStream

from swe_core.api.sandbox import Sandbox
from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.launcher import interpreted
from swe_core.sandboxing.relay.pull_relay import HttpTransport, http_client, reach_by_pull

Start = Callable[[list[str]], Awaitable[ByteStream]]
_HOST = "port-"
"""The host of a URL names the port: URLs have no port 0."""
_READY = b"ready\n"
_CHUNK = 65536
_KEEP = 60.0
"""Seconds that an idle connection is kept: each new one starts a command."""
_LOST = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@asynccontextmanager
async def reach_by_bridge(sandbox: Sandbox, endpoint: str, start: Start) -> AsyncIterator[str]:
    """Make `endpoint` reachable from inside `sandbox`, as `reach_by_pull` does, over connections of its own.

    Each connection is a command in the sandbox that carries bytes between its standard streams and a port. So
    the sandbox may have no network, and its runtime may have a network stack of its own.

    Args:
        endpoint: `http://HOST:PORT` of a server on this host.
        start: Runs a command and returns its standard input and output. It raises SandboxError. The stream
            ends with the command, and closing it ends the command's input.

    Yields:
        `http://127.0.0.1:PORT`, the endpoint's URL inside.

    Raises:
        SandboxError: As in `reach_by_pull`.
    """
    transport = httpx.AsyncHTTPTransport(verify=False, trust_env=False)
    transport._pool = httpcore.AsyncConnectionPool(  # httpx has no parameter for its network
        max_connections=None, keepalive_expiry=_KEEP, network_backend=_Bridges(start)
    )
    async with http_client(transport) as http:
        async with reach_by_pull(
            sandbox, endpoint, lambda port: HttpTransport(http, f"http://{_HOST}{port}")
        ) as url:
            yield url


class _Bridges(httpcore.AsyncNetworkBackend):
    def __init__(self, start: Start) -> None:
        self._start = start

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inside = host.removeprefix(_HOST)
        try:
            connection = _Connection(await self._start(interpreted("bridge", inside)))
        except SandboxError as error:
            raise httpcore.ConnectError(str(error)) from error
        try:
            opened = await connection.opened()
        except BaseException:  # also cancellation: clean up, then raise
            await connection.aclose()
            raise
        if not opened:
            await connection.aclose()
            raise httpcore.ConnectError(f"nothing answers on port {inside} inside")
        return connection


class _Connection(httpcore.AsyncNetworkStream):
    """A connection. The relay has time limits of its own, so it needs none."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._data = b""

    async def opened(self) -> bool:
        """Wait for the line that the program inside prints first. Return whether it came."""
        found = b""
        while len(found) < len(_READY):
            data = await self.read(len(_READY) - len(found))
            if not data:
                return False
            found += data
        return True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._data:
            try:
                self._data = await self._stream.receive(_CHUNK)
            except anyio.EndOfStream:
                return b""
            except _LOST as error:
                raise httpcore.ReadError(str(error)) from error
        taken, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return taken

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._stream.send(buffer)
        except _LOST as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()
