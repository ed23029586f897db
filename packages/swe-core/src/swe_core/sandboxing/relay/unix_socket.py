"""The host's half of the socket relay: a unix socket that leads to one endpoint only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, SocketStream, TaskGroup

from swe_core.errors import PolicyRefused, SandboxError
from swe_core.sandboxing.background import helper_task_group

MAX_UNIX_PATH = 107
"""Bytes of the path of a unix socket on Linux."""
MAX_CONNECTIONS = 64
"""Connections that one sandbox may hold open: each costs the host two file descriptors. More wait."""
_NAME = len("/00000000.sock")
_CHUNK = 65536


def address_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint such as `http://127.0.0.1:8123`.

    Raises:
        SandboxError: It is not a plain http URL without a path.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise SandboxError(
            f"cannot relay to the endpoint {endpoint!r}: expected http://HOST:PORT of a server on this host"
        )
    return parts.hostname, parts.port or 80


def require_room(directory: Path) -> None:
    """Refuse a directory for sockets whose path is too long.

    Raises:
        PolicyRefused: The path leaves no room for the sockets' names.
    """
    most = MAX_UNIX_PATH - _NAME
    length = len(os.fsencode(directory))
    if length > most:
        below = len(os.fsencode(tempfile.gettempdir()))
        raise PolicyRefused(
            f"the temporary directory {tempfile.gettempdir()!r} has a path of {below} bytes, of which Linux "
            f"allows {most - (length - below)} where sandboxes have unix sockets below it: set TMPDIR to a "
            "shorter directory"
        )


@asynccontextmanager
async def unix_listener(path: Path, endpoint: str) -> AsyncIterator[None]:
    """Listen on the unix socket `path`, open to every user, and carry each connection to `endpoint`.

    Raises:
        SandboxError: The path is too long for a socket, or the endpoint is no plain http URL.
    """
    host, port = address_of(endpoint)
    if len(os.fsencode(path)) > MAX_UNIX_PATH:
        raise SandboxError(
            f"the socket path {str(path)!r} is longer than the {MAX_UNIX_PATH} bytes that Linux allows; "
            "set TMPDIR to a shorter directory"
        )

    async def connected(near: SocketStream) -> None:
        async with near:
            try:
                far = await anyio.connect_tcp(host, port)
            except OSError:
                return  # the endpoint has exited; its client sees a connection that ends without an answer
            async with far:
                await splice(near, far)

    places = anyio.Semaphore(MAX_CONNECTIONS)

    async def take(near: SocketStream) -> None:
        try:
            await connected(near)
        finally:
            places.release()

    async def serve(tasks: TaskGroup) -> None:
        while True:
            await places.acquire()  # before accepting: a waiting connection costs the host nothing
            tasks.start_soon(take, await listener.accept())

    listener = await anyio.create_unix_listener(path, mode=0o666, backlog=1024)
    try:
        async with helper_task_group() as tasks:
            tasks.start_soon(serve, tasks)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
        with suppress(FileNotFoundError):
            os.unlink(path)


async def splice(near: ByteStream, far: ByteStream) -> None:
    """Carry bytes both ways until both directions have ended or one side broke off."""
    async with anyio.create_task_group() as both:

        async def pump(source: ByteStream, target: ByteStream) -> None:
            try:
                while True:
                    try:
                        data = await source.receive(_CHUNK)
                    except anyio.EndOfStream:
                        await target.send_eof()
                        return
                    await target.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                both.cancel_scope.cancel()

        both.start_soon(pump, near, far)
        both.start_soon(pump, far, near)
