"""HTTP to the ports of a container without a network: a command inside carries each connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio
import httpcore
import httpx
from anyio.abc import ByteStream

from swe_core.errors import SandboxError
from swe_sandbox_docker.streams import take_frames

Connect = Callable[[int], Awaitable[tuple[ByteStream, bytearray]]]
_HOST = "port-"
_READY = b"ready\n"
_KEEP = 60.0
"""Seconds that an idle connection is kept: each new one starts a command."""


def url_of(port: int) -> str:
    """Return the URL of a port inside. Its host names the port, since URLs have no port 0."""
    return f"http://{_HOST}{port}"


def port_client(connect: Connect) -> httpx.AsyncClient:
    """Return an HTTP client for the URLs of `url_of`. The caller closes it.

    Args:
        connect: Starts a command inside that connects to a port. Returns its hijacked streams.
    """
    transport = httpx.AsyncHTTPTransport(verify=False, trust_env=False)
    transport._pool = httpcore.AsyncConnectionPool(  # httpx has no public way to its network
        max_connections=None, keepalive_expiry=_KEEP, network_backend=_Network(connect)
    )
    return httpx.AsyncClient(transport=transport, timeout=None)


class _Network(httpcore.AsyncNetworkBackend):
    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            stream = _Stream(*await self._connect(int(host.removeprefix(_HOST))))
            if not await stream.opened():
                await stream.aclose()
                raise httpcore.ConnectError(f"nothing answers on port {port} inside")
        except SandboxError as error:
            raise httpcore.ConnectError(str(error)) from error
        return stream


class _Stream(httpcore.AsyncNetworkStream):
    """A connection. The relay has time limits of its own, so it needs none."""

    def __init__(self, connection: ByteStream, first: bytearray) -> None:
        self._connection = connection
        self._framed = first
        self._data = bytearray()

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
        while not self._data:
            for stream, chunk in take_frames(self._framed):
                if stream == "stdout":
                    self._data += chunk
            if not self._data:
                try:
                    self._framed += await self._connection.receive()
                except anyio.EndOfStream:
                    return b""
                except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                    raise httpcore.ReadError(str(error)) from error
        taken = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        return taken

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._connection.send(buffer)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._connection)
