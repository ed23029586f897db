"""Server-sent events: the data of each event of a stream."""

from __future__ import annotations

from swe_core.builtin.bounds import OutOfBounds


class EventParser:
    """Finds the events of one stream, which comes in pieces. An event without its end is ignored.

    Args:
        event: The most bytes of an event.
        stream: The most bytes of all, comments included.
    """

    def __init__(self, event: int, stream: int) -> None:
        self._event = event
        self._stream = stream
        self._left = stream
        self._data: list[bytes] = []
        self._line: list[bytes] = []  # one that has not ended
        self._held = 0  # bytes of both, at least

    @property
    def between(self) -> bool:
        """Return whether no part of an event has come after the last whole one."""
        return not (self._data or self._line)

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of each event that ends in `piece`, the next piece of the stream.

        Raises:
            OutOfBounds: The event or the stream is too long.
        """
        self._left -= len(piece)
        if self._left < 0:
            raise OutOfBounds(f"more than {self._stream} bytes")
        if b"\n" not in piece:
            self._hold(len(piece))
            self._line.append(piece)
            return []
        if self._line:
            piece = b"".join((*self._line, piece))
            self._line = []
        *lines, rest = piece.split(b"\n")
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        if self._data:  # less is held where an event ended
            self._hold(len(piece), more=not found)
        elif self._held or rest:
            self._hold(len(rest), more=False)
        if rest:
            self._line.append(rest)
        return found

    def _hold(self, size: int, more: bool = True) -> None:
        """Note that `size` bytes wait, or so many more."""
        self._held = self._held * more + size
        if self._held > self._event:
            raise OutOfBounds(f"an event of more than {self._event} bytes")
