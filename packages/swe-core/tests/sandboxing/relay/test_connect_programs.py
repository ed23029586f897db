"""The program that carries bytes between its standard streams and a port inside."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import Process, SocketAttribute, SocketStream

from swe_testing.sandbox.base import PATIENCE

from .helpers import BOTH, program_of

pytestmark = pytest.mark.anyio
DATA = bytes(range(256)) * 8000


@asynccontextmanager
async def connected(language: str, port: int) -> AsyncIterator[Process]:
    """The program, with a pipe on both sides."""
    argv = [*program_of("connect", language), str(port)]
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(
            argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield process
            finally:  # or leaving would wait for its end
                with suppress(ProcessLookupError):  # it has ended
                    process.kill()


@asynccontextmanager
async def echoing_server(count: int) -> AsyncIterator[int]:
    """A server that sends back `count` bytes and then closes; yields its port."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            left = count
            async for chunk in stream:
                left -= len(chunk)
                await stream.send(chunk)
                if not left:
                    return

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("language", BOTH)
async def test_bytes_are_carried_both_ways_until_the_port_closes(language: str) -> None:
    async with echoing_server(len(DATA)) as port, connected(language, port) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.stdin.send, DATA)
            assert b"".join([chunk async for chunk in process.stdout]) == DATA
        assert await process.wait() == 0


@pytest.mark.parametrize("language", BOTH)
async def test_end_of_its_input_ends_it(language: str) -> None:
    """Although the port stays open: whoever started it has left."""
    async with echoing_server(-1) as port, connected(language, port) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(b"x")
        assert await process.stdout.receive() == b"x"
        await process.stdin.aclose()
        assert await process.wait() == 0


@pytest.mark.parametrize("language", BOTH)
async def test_port_on_which_nothing_listens(language: str) -> None:
    async with connected(language, 0) as process:
        assert process.stdout is not None
        assert [chunk async for chunk in process.stdout] == []
        assert await process.wait() == 1
