"""Exec: one command in a pod, over a websocket of the API server."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack

import aiohttp
import anyio
from anyio.abc import ByteStream

from swe_core.sandboxing.followed.failures import BrokenOff
from swe_core.system.printable import one_line
from swe_sandbox_k8s.errors import CLIENT, NoShell, NotRun

STDIN, STDOUT, STDERR, _STATUS = range(4)
"""Channels of the protocol v4.channel.k8s.io: the first byte of each message."""
_FRAME = 32 * 1024
"""Bytes of a message. The kubelet copies streams in pieces of this size."""
_NO_SHELL = re.compile(
    r"executable file not found|no such file or directory|permission denied", re.IGNORECASE
)


class Exec:
    """A running command.

    Attributes:
        code: Its exit code, once it has ended.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.code: int | None = None
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """Send standard input.

        Raises:
            BrokenOff: The connection is closed.
        """
        try:
            for start in range(0, len(data), _FRAME):
                await self._socket.send_bytes(bytes([STDIN]) + data[start : start + _FRAME])
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BrokenOff(f"the connection to a pod broke off: {error}") from error

    async def receive(self, timeout: float | None) -> tuple[int, bytes] | None:
        """Return the next piece of standard output or error, or None at the command's end.

        Args:
            timeout: Seconds of silence after which the connection counts as broken; None waits for ever.

        Raises:
            BrokenOff: The connection ended before the command.
            NoShell: The pod has no shell.
        """
        while self.code is None:
            try:
                with anyio.fail_after(timeout):
                    message = await self._socket.receive()
            except TimeoutError:
                raise BrokenOff(f"a command in a pod said nothing for {timeout:g} s") from None
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise BrokenOff("the connection to a pod broke off")
            channel, data = message.data[0], message.data[1:]
            if channel == _STATUS:
                self.code = _exit_code(data)
            elif data:
                return channel, data
        return None


class CommandStream(ByteStream):
    """Standard input and output of a command.

    Args:
        running: The command.
        stack: Its context.
    """

    def __init__(self, running: Exec, stack: AsyncExitStack) -> None:
        self._running = running
        self._stack = stack
        self._data = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """See `anyio.abc.ByteReceiveStream`."""
        while not self._data:
            try:
                found = await self._running.receive(None)
            except (*CLIENT, BrokenOff, NoShell) as error:
                raise anyio.BrokenResourceError(str(error)) from error
            if found is None:
                raise anyio.EndOfStream
            self._data = found[1] if found[0] == STDOUT else b""
        taken, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return taken

    async def send(self, item: bytes) -> None:
        """See `anyio.abc.ByteSendStream`."""
        try:
            await self._running.send(item)
        except BrokenOff as error:
            raise anyio.BrokenResourceError(str(error)) from error

    async def send_eof(self) -> None:
        """Close the connection: this protocol has no end of standard input."""
        await self.aclose()

    async def aclose(self) -> None:
        """See `anyio.abc.AsyncResource`."""
        await self._stack.aclose()


def _exit_code(status: bytes) -> int:
    """Return the exit code of a `Status` of the API.

    Raises:
        NotRun: The command could not be run.
        NoShell: The pod has no shell.
    """
    try:
        found = json.loads(status)
        if found["status"] == "Success":
            return 0
        if found.get("reason") == "NonZeroExitCode":
            return int(found["details"]["causes"][0]["message"])
        said = one_line(str(found.get("message")), 400)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise NotRun(f"the cluster said how a command ended in other words than its API: {error}") from None
    if _NO_SHELL.search(said):
        raise NoShell(said)
    raise NotRun(said)
