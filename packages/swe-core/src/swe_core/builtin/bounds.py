"""Bounds: the most that a server may send, and for how long. No server is trusted to end what it begins."""

from __future__ import annotations

import math
import time
from typing import Any

import aiohttp
import anyio
import orjson
from aiohttp.http_exceptions import ContentEncodingError

from swe_core.system.json_size import MAX_VALUES, is_deep, values

ERROR = 64 * 1024
"""Bytes that are read of an error."""
LIST = 8 * 2**20
"""Bytes of a list of models."""
EVENT = 16 * 2**20
"""Bytes of one event, and of a reply in one piece, where no number of ids bounds them: images are long."""
TOKENS = 2**16
"""Tokens of a reply for which there is room where fewer or none are asked for: some providers do not count
those of the reasoning."""
WIRE = 1024
"""Bytes in which a stream may wrap one token."""
PIECES = 4
"""Events of a stream per token."""
CALLS = 10_000
"""Tool calls of a reply."""
NAME = 256 * 1024
"""Characters of a call's id, and of its name. Some proxies put the model's reasoning into the id."""
DEPTH = 128
"""Levels of objects and lists in a reply."""
_ERROR_SECONDS = 10.0
_FLAT = 400
"""Bytes that have no room for more levels than a record of them can have."""
_SHORT = 64 * 1024
"""Bytes whose values need no count."""


class OutOfBounds(ValueError):
    """A server sends too much; the text says of what."""


async def read(response: aiohttp.ClientResponse, most: int, seconds: float) -> bytes:
    """Return the body of a response.

    Args:
        most: Bytes, without compression.
        seconds: The time that it may take.

    Raises:
        OutOfBounds: It is longer.
        TimeoutError: It does not end in time.
        aiohttp.ClientError: The connection broke.
    """
    parts: list[bytes] = []
    await _collect(response, most, parts, seconds)
    return b"".join(parts)


async def read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the beginning of an error's body: what came of it in some seconds."""
    parts: list[bytes] = []
    try:
        with anyio.move_on_after(_ERROR_SECONDS):
            await _collect(response, ERROR, parts)
    except (OutOfBounds, aiohttp.ClientError, ContentEncodingError, TimeoutError):
        pass  # the status is known, and counts
    return b"".join(parts)[:ERROR]


async def _collect(
    response: aiohttp.ClientResponse, most: int, parts: list[bytes], seconds: float = math.inf
) -> None:
    size, until = 0, time.monotonic() + seconds  # a cancel scope costs a tenth of a small reply
    while not response.content.at_eof():
        piece = await response.content.readany()
        if time.monotonic() > until:
            raise TimeoutError
        parts.append(piece)
        size += len(piece)
        if size > most:
            raise OutOfBounds(f"more than {most} bytes")


def loads(raw: bytes) -> Any:
    """Return the value of a server's JSON.

    Raises:
        orjson.JSONDecodeError: It is none.
        OutOfBounds: It has too many values or levels.
    """
    if len(raw) > _SHORT and values(raw) > MAX_VALUES:
        raise OutOfBounds(f"more than {MAX_VALUES} values")
    value = orjson.loads(raw)
    if len(raw) > _FLAT and raw.count(b"{") + raw.count(b"[") > DEPTH and is_deep([value], DEPTH + 1):
        raise OutOfBounds(f"more than {DEPTH} levels")
    return value


def check_calls(calls: Any) -> None:
    """Check the number of calls in a message, or in a piece of one, and their ids and names.

    Raises:
        OutOfBounds: They are too many, or an id or a name is too long.
    """
    if not isinstance(calls, list):
        return  # told as what it is, elsewhere
    if len(calls) > CALLS:
        raise OutOfBounds(f"more than {CALLS} tool calls")
    for call in calls:
        if isinstance(call, dict):
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            check_name(call.get("id"))
            check_name(name)


def check_name(text: object) -> None:
    """Check an id or a name of a call.

    Raises:
        OutOfBounds: It is too long.
    """
    if isinstance(text, str) and len(text) > NAME:
        raise OutOfBounds(f"a tool call with an id or a name of more than {NAME} characters")
