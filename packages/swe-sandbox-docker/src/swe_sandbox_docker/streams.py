"""The Engine API's framing of a container's output: stdout and stderr in one stream."""

from __future__ import annotations

from collections.abc import Iterator

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
