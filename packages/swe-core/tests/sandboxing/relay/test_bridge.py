"""The programs that carry their standard streams to a port, for providers that only run commands inside."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import cast

import anyio
import httpx
import pytest
from aiohttp import web
from anyio.abc import ByteStream
from anyio.streams.stapled import StapledByteStream

from swe_core.api.sandbox import Sandbox
from swe_core.errors import SandboxError
from swe_core.sandboxing.relay import bridge
from swe_core.sandboxing.relay.bridge import reach_by_bridge
from swe_core.sandboxing.relay.transport import Transport, TransportError
from swe_testing.ports import refusing

from .helpers import BOTH, cancelling, on_this_host, program_of

PATIENCE = 60.0


@contextmanager
def bridged(language: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The program, and the connection that it has made."""
    pipe = subprocess.PIPE
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        argv = [*program_of("bridge", language), str(server.getsockname()[1])]
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process, server.accept()[0] as connection:
            connection.settimeout(PATIENCE)
            yield process, connection


@pytest.mark.parametrize("language", BOTH)
def test_bytes_arrive_unchanged_in_both_directions(language: str) -> None:
    data = os.urandom(3_000_000)
    with bridged(language) as (process, connection):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for start in range(0, len(data), 50_000):
            piece = data[start : start + 50_000]
            process.stdin.write(piece)
            process.stdin.flush()
            assert connection.recv(len(piece), socket.MSG_WAITALL) == piece
            connection.sendall(piece)
            assert process.stdout.read(len(piece)) == piece
        connection.close()
        assert process.stdout.read() == b""  # it ends with the connection
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("language", BOTH)
def test_it_ends_with_its_standard_input(language: str) -> None:
    """As the connection that runs it does."""
    with bridged(language) as (process, connection):
        process.communicate(timeout=PATIENCE)
        assert connection.recv(1) == b""
        assert process.returncode == 0


@pytest.mark.parametrize("language", BOTH)
def test_port_where_nothing_listens(language: str) -> None:
    with refusing() as url:
        argv = [*program_of("bridge", language), url.rpartition(":")[2]]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode == 0) == (b"", False)


@pytest.mark.anyio
async def test_requests_go_through_commands_inside() -> None:
    """The first command cannot be run, and the relay tries again. All processes end with their streams."""
    commands: list[list[str]] = []

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:

            async def start(argv: list[str]) -> ByteStream:
                commands.append(argv)
                if len(commands) == 1:
                    raise SandboxError("not now")
                process = await anyio.open_process(argv, stderr=subprocess.DEVNULL)
                stack.push_async_callback(process.wait)
                assert process.stdin is not None
                assert process.stdout is not None
                return StapledByteStream(process.stdin, process.stdout)

            endpoint = await stack.enter_async_context(cancelling({"/": hello}))
            async with on_this_host("python") as sandbox, reach_by_bridge(sandbox, endpoint, start) as url:
                async with httpx.AsyncClient(timeout=PATIENCE) as agent, anyio.create_task_group() as tasks:

                    async def ask(text: str) -> None:
                        assert (await agent.post(url, content=text)).text == text

                    for number in range(8):
                        tasks.start_soon(ask, str(number))
    assert len(commands) > 1


@pytest.mark.anyio
async def test_any_port_and_any_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 0, on which nothing can listen, is port 0 inside too; and no connection waits for another."""
    ports: list[str] = []
    all_there = anyio.Event()

    async def start(argv: list[str]) -> ByteStream:
        ports.append(argv[-1])
        if len(ports) == 30:
            all_there.set()
        await all_there.wait()
        raise SandboxError("not here")

    @asynccontextmanager
    async def pulling(
        sandbox: object, endpoint: str, connect: Callable[[int], Transport]
    ) -> AsyncIterator[str]:
        async def pull() -> None:
            with pytest.raises(TransportError, match="not here"):
                async with connect(0).pull("/", {}):
                    pass

        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(pull)
        yield ""

    monkeypatch.setattr(bridge, "reach_by_pull", pulling)
    with anyio.fail_after(PATIENCE):
        async with reach_by_bridge(cast(Sandbox, None), "", start):
            assert ports == ["0"] * 30
