"""Keeping secrets out of everything that is written: one place, used by every writer."""

from __future__ import annotations

MARK = "[redacted]"


class Redactor:
    """Replaces known secrets in texts and bytes before they are written.

    Secrets shorter than eight characters are not replaced: they would tear ordinary text apart.
    """

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add(self, secret: str) -> None:
        """Know `secret` from now on."""
        if len(secret) >= 8:
            self._secrets.add(secret)

    def discard(self, secret: str) -> None:
        """Forget a secret that is worth nothing any more."""
        self._secrets.discard(secret)

    def text(self, text: str) -> str:
        """`text` with every known secret replaced by `MARK`."""
        for secret in self._secrets:
            text = text.replace(secret, MARK)
        return text

    def unfinished(self, data: bytes) -> int:
        """How many of the last bytes of `data` may be the beginning of a secret that goes on after them."""
        longest = 0
        for secret in self._secrets:
            encoded = secret.encode()
            for length in range(min(len(encoded) - 1, len(data)), longest, -1):
                if data.endswith(encoded[:length]):
                    longest = length
                    break
        return longest

    def data(self, data: bytes) -> bytes:
        """The same for bytes."""
        for secret in self._secrets:
            data = data.replace(secret.encode(), MARK.encode())
        return data
