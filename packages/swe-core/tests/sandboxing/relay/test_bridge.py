"""The programs that carry their standard streams to a port, for providers that only run commands inside."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
        with connection.makefile("rb") as received:  # recv() of a socket with a timeout returns a part
            for start in range(0, len(data), 50_000):
                piece = data[start : start + 50_000]
                process.stdin.write(piece)
                process.stdin.flush()
                assert received.read(len(piece)) == piece
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


Pulled = Callable[[bridge.Start, int], Awaitable[list[str]]]


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> Pulled:
    """Makes so many connections to port 0 at once by a function that starts commands; their errors."""

    async def ask(start: bridge.Start, number: int) -> list[str]:
        errors: list[str] = []

        @asynccontextmanager
        async def pulling(
            sandbox: object, endpoint: str, connect: Callable[[int], Transport]
        ) -> AsyncIterator[str]:
            async def pull() -> None:
                with pytest.raises(TransportError) as caught:
                    async with connect(0).pull("/", {}):
                        pass
                errors.append(str(caught.value))

            async with anyio.create_task_group() as tasks:
                for _ in range(number):
                    tasks.start_soon(pull)
            yield ""

        monkeypatch.setattr(bridge, "reach_by_pull", pulling)
        with anyio.fail_after(PATIENCE):
            async with reach_by_bridge(cast(Sandbox, None), "", start):
                return errors

    return ask


async def test_any_port_and_any_number_of_connections(pulled: Pulled) -> None:
    """Port 0, on which nothing can listen, is port 0 inside too; and no connection waits for another."""
    ports: list[str] = []
    all_there = anyio.Event()

    async def start(argv: list[str]) -> ByteStream:
        ports.append(argv[-1])
        if len(ports) == 30:
            all_there.set()
        await all_there.wait()
        raise SandboxError("not here")

    errors = await pulled(start, 30)
    assert ports == ["0"] * 30
    assert all("not here" in error for error in errors)


class Breaking(ByteStream):
    """A command that says this, and is then lost."""

    def __init__(self, *said: bytes, end: type[Exception] = anyio.BrokenResourceError) -> None:
        self.said, self.end, self.closed = [*said], end, False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.said:
            raise self.end("lost")
        return self.said.pop(0)

    async def send(self, item: bytes) -> None:
        if self.said == []:
            raise self.end("lost")

    async def send_eof(self) -> None:
        return

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (Breaking(b"rea", end=anyio.EndOfStream), "nothing answers on port 0 inside"),
        (Breaking(b"rea"), "lost"),
        (Breaking(b"ready\n"), "lost"),
        (Breaking(b"ready\n", b"HTTP/1.1 200"), "lost"),
    ],
    ids=("ends early", "breaks early", "cannot be written to", "cannot be read from"),
)
async def test_command_that_is_lost_is_closed(pulled: Pulled, command: Breaking, says: str) -> None:
    async def start(argv: list[str]) -> ByteStream:
        return command

    (error,) = await pulled(start, 1)
    assert says in error
    assert command.closed
