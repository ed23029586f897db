"""Server-sent events: the data of each event of a stream."""

from __future__ import annotations


class EventParser:
    """Finds the events of one stream, which comes in pieces. An event without its end is ignored."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of each event that ends in `piece`, the next piece of the stream."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found
