"""The relay: its two programs, its host half, and what can go wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from swe_core.api.sandbox import ASSETS_DIR, Asset, SandboxSpec
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.unix_socket import MAX_CONNECTIONS, address_of, unix_listener
from swe_testing.ports import refusing
from swe_testing.sandbox.base import PATIENCE
from swe_testing.sandbox.network import hello, serving

from .helpers import BOTH, NODE, needs_node, program_of, running

needs_namespaces = pytest.mark.usefixtures("local_sandbox")


@asynccontextmanager
async def reversing_server() -> AsyncIterator[str]:
    """A server that answers once the client has said all: it needs half-closed connections."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            data = b"".join([chunk async for chunk in stream])
            await stream.send(data[::-1])

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{port}"
        tasks.cancel_scope.cancel()
    await listener.aclose()


@asynccontextmanager
async def forwarding(language: str, path: Path) -> AsyncIterator[int]:
    """One of the programs that forward to a socket; yields its port."""
    async with running([*program_of("forward", language), str(path)]) as (port,):
        yield port


async def is_cut_off(port: int) -> None:
    """A connection ends at once, perhaps before its caller has noticed that it stands."""
    with anyio.fail_after(PATIENCE), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError, OSError)):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.receive()


@pytest.mark.parametrize("language", BOTH)
async def test_relay_keeps_half_closed_connections(scratch: Path, language: str) -> None:
    path = scratch / "s"
    data = bytes(range(256)) * 4000
    async with reversing_server() as endpoint, unix_listener(path, endpoint):
        async with forwarding(language, path) as port:
            with anyio.fail_after(PATIENCE):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await stream.send(data)
                    await stream.send_eof()
                    assert b"".join([chunk async for chunk in stream]) == data[::-1]
    assert not path.exists()


@pytest.mark.parametrize("language", BOTH)
async def test_callers_are_cut_off_where_nobody_answers(scratch: Path, language: str) -> None:
    """Now and the next time, without an endpoint and without the host's half; the program lives."""
    with refusing() as endpoint:
        async with unix_listener(scratch / "s", endpoint):
            for name in ("s", "nobody"):
                async with forwarding(language, scratch / name) as port:
                    for _ in range(2):
                        await is_cut_off(port)


async def test_connections_of_a_sandbox_are_bounded(scratch: Path) -> None:
    """Connections over the limit wait, at no cost to the host, until one ends."""
    async with reversing_server() as endpoint, unix_listener(scratch / "s", endpoint):
        held = [await anyio.connect_unix(scratch / "s") for _ in range(MAX_CONNECTIONS)]
        waiting = await anyio.connect_unix(scratch / "s")
        await waiting.send(b"abc")
        await waiting.send_eof()
        with anyio.move_on_after(0.3) as early:
            await waiting.receive()
        assert early.cancelled_caught
        await held.pop().aclose()
        with anyio.fail_after(PATIENCE):
            assert await waiting.receive() == b"cba"
        for stream in [*held, waiting]:
            await stream.aclose()


async def test_too_long_socket_path_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 108)
    with pytest.raises(SandboxError, match=r"longer than the 107 bytes.*TMPDIR"):
        async with unix_listener(path, "http://127.0.0.1:9"):
            pass


def test_endpoint_is_parsed_or_rejected() -> None:
    for endpoint, address in (
        ("http://127.0.0.1:81", ("127.0.0.1", 81)),
        ("http://h/", ("h", 80)),
        ("http://[::1]:5", ("::1", 5)),
        ("127.0.0.1:80", None),
        ("https://127.0.0.1:80", None),
        ("http://h:80/v1", None),
        ("http://h:80?a=b", None),
        ("http://:80", None),
    ):
        refused = pytest.raises(SandboxError, match="expected http://HOST:PORT")
        with refused if address is None else nullcontext():
            assert address_of(endpoint) == address


@pytest.fixture
def spec_without_python(tmp_path: Path) -> SandboxSpec:
    """A sandbox whose PATH has a shell and nothing else."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    return SandboxSpec(disk_mb=64, repository=tmp_path, env={"PATH": "/testbed"})


@needs_namespaces
async def test_sandbox_without_interpreter_is_an_error(spec_without_python: SandboxSpec) -> None:
    async with LocalProvider().open(spec_without_python) as sandbox:
        with pytest.raises(SandboxError, match=r"neither python3 .* nor node.*use an image with either"):
            async with sandbox.reach("http://127.0.0.1:9"):
                pass


@needs_namespaces
@needs_node
async def test_node_of_the_agent_runs_the_relay(spec_without_python: SandboxSpec) -> None:
    """An image with neither: the node that the agent brought does it."""
    assert NODE is not None
    node = Asset(name="agent", path=NODE.parents[1], digest="1")
    fetch = "fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t))"
    async with LocalProvider().open(spec_without_python.model_copy(update={"assets": (node,)})) as sandbox:
        async with serving({"/": hello}) as endpoint, sandbox.reach(endpoint) as url:
            argv = [f"{ASSETS_DIR}/agent/bin/node", "-e", fetch, f"{url}/"]
            done = await sandbox.exec(argv, timeout=PATIENCE)
            assert (done.exit_code, done.stdout) == (0, b"hello"), done.stderr
