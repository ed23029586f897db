"""The Engine API's framing of a container's output: stdout and stderr in one stream."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
from anyio.abc import ByteStream

from swe_core.api.sandbox import Stream

_HEADER = 8
_STDERR = 2


def take_frames(data: bytearray) -> Iterator[tuple[Stream, bytes]]:
    """Yield the whole frames at the start of `data` and remove them from it."""
    while len(data) >= _HEADER:
        end = _HEADER + int.from_bytes(data[4:_HEADER], "big")
        if len(data) < end:
            return
        stream: Stream = "stderr" if data[0] == _STDERR else "stdout"
        chunk = bytes(data[_HEADER:end])
        del data[:end]
        yield stream, chunk


class CommandStream(ByteStream):
    """Standard input and output of a command.

    Args:
        connection: Its connection to the engine.
        first: Output that arrived with the head of the engine's reply.
    """

    def __init__(self, connection: ByteStream, first: bytearray) -> None:
        self._connection = connection
        self._framed = first
        self._data = bytearray()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """See `anyio.abc.ByteReceiveStream`."""
        while not self._data:
            for stream, chunk in take_frames(self._framed):
                if stream == "stdout":
                    self._data += chunk
            if not self._data:
                self._framed += await self._connection.receive()
        taken = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        return taken

    async def send(self, item: bytes) -> None:
        """See `anyio.abc.ByteSendStream`."""
        await self._connection.send(item)

    async def send_eof(self) -> None:
        """See `anyio.abc.ByteStream`."""
        await self._connection.send_eof()

    async def aclose(self) -> None:
        """See `anyio.abc.AsyncResource`."""
        await anyio.aclose_forcefully(self._connection)
