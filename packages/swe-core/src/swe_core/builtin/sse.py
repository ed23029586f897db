"""Server-sent events: the data of each event of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable


async def events(stream: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The data of each event in `stream`, whatever pieces it comes in; all else of it is left out.

    An event that the end of the stream cuts off is none.
    """
    data: list[bytes] = []
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
