"""ExecTransport: requests to a control port by a program inside, for providers that forward no port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from swe_core.api.sandbox import Process, Sandbox
from swe_core.sandboxing.relay.launcher import KILL_TIMEOUT, command
from swe_core.sandboxing.relay.transport import TransportError, short

_TOLD = 200


class ExecTransport:
    """A `Transport` that needs nothing but `Sandbox.start`: a small program inside (python3 or node) makes
    each request, its output is the answer. A request costs the start of an interpreter: HTTP is faster.

    Args:
        sandbox: Where the control port is.
        port: The control port. With 0 every request fails.
    """

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox = sandbox
        self._port = port

    @asynccontextmanager
    async def pull(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """See `Transport.pull`."""
        async with self._asking("GET", path, headers, b"") as process:
            yield _said(process)

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """See `Transport.push`."""
        async with self._asking("POST", path, headers, body) as process:
            return await short(_said(process))

    @asynccontextmanager
    async def _asking(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Process]:
        if not self._port:  # what is printed inside, also then, the code inside may have printed
            raise TransportError("nothing listens on the port 0")
        argv = command("client", method, str(self._port), path)
        stdin = json.dumps(dict(headers)).encode() + b"\n" + body
        process = await self._sandbox.start(argv, cwd="/", stdin=stdin)
        try:
            yield process
        finally:
            with anyio.move_on_after(KILL_TIMEOUT, shield=True):
                await process.kill()


async def _said(process: Process) -> AsyncIterator[bytes]:
    """What it prints to stdout; raises TransportError when it fails."""
    why = b""
    async for stream, chunk in process.output():
        if stream == "stdout":
            yield chunk
        else:
            why = (why + chunk)[:_TOLD]
    exit_code = await process.wait()
    if exit_code != 0:
        said = " ".join(why.decode(errors="replace").split()) or f"exit code {exit_code}"
        raise TransportError(f"a request to the relay inside failed: {said}")
