"""The host's half of the socket relay: a unix socket that leads to one endpoint only."""

from __future__ import annotations

import os
import re
import socket
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, TaskGroup

from swe_core.errors import PolicyRefused, SandboxError
from swe_core.sandboxing.background import helper_task_group
from swe_core.system import callers

MAX_UNIX_PATH = 107
"""Bytes of the path of a unix socket on Linux."""
MAX_CONNECTIONS = 64
"""Connections that one sandbox may hold open: each costs the host two file descriptors. More wait."""
_NAME = len("/00000000.sock")
_CHUNK = 65536
_CALLER = re.compile(rb"caller (?:(unknown)|(hidden)|([0-9]{1,12}\.[0-9]{2}) ([0-9]{1,12}\.[0-9]{2}))\n")
_MAX_CALLER = 64
_CALLER_TIMEOUT = 10.0
_SAME_CLOCK = (-1.0, 60.0)
"""Seconds by which the relay's clock may be behind: else its kernel is another one."""


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

    witness = _Witness()

    async def connected(near: SocketStream) -> None:
        async with near:
            try:
                far = await anyio.connect_tcp(host, port)
            except OSError:
                return  # the endpoint has exited; its client sees a connection that ends without an answer
            async with far:
                address = far.extra(SocketAttribute.raw_socket).getsockname()[:2]
                try:
                    born, first = await witness.hear(near)
                    callers.note(address, born)
                    await far.send(first)
                    await splice(near, far)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    return  # one side broke off
                finally:
                    callers.note(address, None)

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


class _Witness:
    """Believe what the relay's process says of callers: the first to connect, before a policy has acted."""

    def __init__(self) -> None:
        self._relay: tuple[int, str] | None = None
        self._finds: bool | None = None  # whether it found the first caller

    async def hear(self, near: SocketStream) -> tuple[float | None, bytes]:
        """Return when the caller was born, as `callers.note` takes it, and the first bytes to carry."""
        peer = _peer(near)
        self._relay = self._relay or peer
        if peer != self._relay:
            return callers.HIDDEN, b""
        data = b""
        with anyio.move_on_after(_CALLER_TIMEOUT):
            try:
                while len(data) < _MAX_CALLER and b"\n" not in data:
                    data += await near.receive(_MAX_CALLER)
            except anyio.EndOfStream:
                pass
        said = _CALLER.match(data)
        if self._finds is None:
            self._finds = said is not None and said[3] is not None
        if not peer[0]:  # another namespace, in which anybody looks like the relay
            return None, data[said.end() :] if said else data
        if said is None:
            return callers.HIDDEN, data
        born: float | None = None
        if said[2] and self._finds:
            born = callers.HIDDEN
        elif said[3] and _SAME_CLOCK[0] <= callers.boot_time() - float(said[4]) <= _SAME_CLOCK[1]:
            born = float(said[3])
        return born, data[said.end() :]


def _peer(near: SocketStream) -> tuple[int, str]:
    """Return the process that connected, and its start: numbers of processes are used again."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0, ""
    raw = near.extra(SocketAttribute.raw_socket)
    pid = struct.unpack("3i", raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        return pid, Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return pid, ""


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
