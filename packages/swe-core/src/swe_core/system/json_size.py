"""How much a JSON text is: its values and its levels."""

from __future__ import annotations

from typing import Any

MAX_VALUES = 100_000
"""Values in a large text. A value costs far more time and memory than its bytes."""
_PIECE = 256 * 1024
"""Bytes that are scanned at a time."""
_CONTAINERS = frozenset((dict, list))


def values(text: bytes | bytearray) -> int:
    """Return an upper bound of the number of values in the JSON `text`.

    The function counts lists, objects and commas outside strings. It stops soon after `MAX_VALUES`, takes
    invalid JSON, and scans piece by piece, so that other threads run.
    """
    found = start = inside = 0  # inside: whether a piece begins in a string
    while start < len(text) and found <= MAX_VALUES:
        piece = text[start : start + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last backslash begins an escape
            piece = text[start : start + _PIECE + 1]
        start += len(piece)
        # Without escaped quotes each quote begins or ends a string.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[inside::2])
        found += sum(map(outside.count, (b"{", b"[", b",")))
        inside = (inside + len(parts) - 1) % 2
    return found


def is_deep(value: Any, depth: int) -> bool:
    """Return whether `value` has more than `depth` levels of objects and lists, itself the first."""
    level: list[Any] = [value]
    for _ in range(depth):
        inside = (value.values() if type(value) is dict else value for value in level)
        level = [value for values in inside for value in values if type(value) in _CONTAINERS]
        if not level:
            return False
    return True
