"""HTTP to a port of 127.0.0.1 in a pod: each connection is a command there that carries its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import httpcore
import httpx

from swe_core.sandboxing.followed.failures import BrokenOff
from swe_core.sandboxing.relay.launcher import interpreted
from swe_sandbox_k8s.errors import CLIENT, NoShell
from swe_sandbox_k8s.exec import STDOUT, Exec

_READY = b"ready\n"
_START = 30.0
"""Seconds until the command runs inside."""
_FAILED = (*CLIENT, BrokenOff, NoShell)

Start = Callable[[list[str]], AbstractAsyncContextManager[Exec]]


class PodTransport(httpx.AsyncHTTPTransport):
    """A transport of httpx whose connections lead to 127.0.0.1 in a pod, whatever the host of the URL.

    It needs nothing of the pod's network, so that the pod may have none, and it works for every RuntimeClass.
    A port-forward would not: where the runtime has a kernel of its own it finds nothing that listens.

    Args:
        start: Runs a command in the pod.
    """

    def __init__(self, start: Start) -> None:
        super().__init__()
        # httpx has no parameter for the network that its connections use, and httpcore has.
        self._pool = httpcore.AsyncConnectionPool(network_backend=_Backend(start))


class _Backend(httpcore.AsyncNetworkBackend):
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
        stack = AsyncExitStack()
        try:
            running = await stack.enter_async_context(self._start(interpreted("bridge", str(port))))
            opening = b""
            while len(opening) < len(_READY):
                found = await running.receive(_START)
                if found is None:
                    raise httpcore.ConnectError(f"nothing answers on port {port} in the pod")
                opening += found[1] if found[0] == STDOUT else b""
        except BaseException as error:  # also cancellation: clean up, then raise
            await stack.aclose()
            if isinstance(error, _FAILED):
                raise httpcore.ConnectError(str(error)) from error
            raise
        return _Stream(running, stack, opening.removeprefix(_READY))


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, running: Exec, stack: AsyncExitStack, data: bytes) -> None:
        self._running = running
        self._stack = stack
        self._data = data

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while not self._data:
            try:
                found = await self._running.receive(timeout)
            except _FAILED as error:
                raise httpcore.ReadError(str(error)) from error
            if found is None:
                return b""
            self._data = found[1] if found[0] == STDOUT else b""
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._running.send(buffer)
        except BrokenOff as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._stack.aclose()

    def get_extra_info(self, info: str) -> Any:
        return None
