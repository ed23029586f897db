"""What can go wrong while a command is followed, beside the errors of the service's own client."""

from __future__ import annotations

_ENDLESS = 16 * 1024 * 1024


class BrokenOff(Exception):
    """The stream of a command ended before the command did."""


class Killed(BrokenOff):
    """A command was killed, but not by this program."""


class Garbled(Exception):
    """The text is not from follow.sh: the connection corrupted it, or the sandbox's shell was replaced."""


class Tail:
    """The last characters of a text that arrives in pieces.

    The text is bounded, because code inside may have replaced the program that prints it.

    Args:
        most: Number of characters to keep.
    """

    def __init__(self, most: int) -> None:
        self.text = ""
        self._most = most
        self._seen = 0

    def add(self, piece: str) -> None:
        """Add a piece.

        Raises:
            Garbled: The text exceeds 16 Mi characters.
        """
        self._seen += len(piece)
        if self._seen > _ENDLESS:
            raise Garbled(f"more than {_ENDLESS} characters of {piece[:100]!r}")
        self.text = (self.text + piece)[-self._most :]
