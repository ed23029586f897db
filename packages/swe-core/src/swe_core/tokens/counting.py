"""Stop tokenising once a prompt certainly exceeds the context: megabytes of text take seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from swe_core.errors import ContextOverflow

T = TypeVar("T")

_PIECE = 64 * 1024
"""Characters that are tokenised at a time, only to count them."""
_AT_ONCE = 4
"""Characters per token of the context up to which a text is tokenised without counting its pieces."""
_SURE = 2
"""Overflow factor that is certain: a text may have fewer ids than its pieces, and a format may tokenise it
twice."""


class _Count:
    """The ids made so far, of `limit` that fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ids = 0

    def check(self, more: int = 0) -> None:
        """Raise ContextOverflow where all ids, and `more`, cannot fit."""
        found = self.ids + more
        if found > _SURE * self.limit:
            raise ContextOverflow(found // _SURE, self.limit, or_more=True)


_count: ContextVar[_Count | None] = ContextVar("_count", default=None)


@contextmanager
def at_most(limit: int | None) -> Iterator[None]:
    """Let `counted` raise, within the context, once its texts cannot fit.

    Args:
        limit: Tokens of the context; None counts nothing.
    """
    token = _count.set(None if limit is None else _Count(limit))
    try:
        yield
    finally:
        _count.reset(token)


def counted(text: str, encode: Callable[[str], T], size: Callable[[T], int]) -> T:
    """Return `encode(text)`, counted where `at_most` is active.

    Args:
        size: Returns how many ids it gave.

    Raises:
        ContextOverflow: With the texts before it, `text` cannot fit.
    """
    count = _count.get()
    if count is None:
        return encode(text)
    if len(text) > _AT_ONCE * count.limit:
        found = 0
        for start in range(0, len(text), _PIECE):
            found += size(encode(text[start : start + _PIECE]))
            count.check(found)
    encoded = encode(text)
    count.ids += size(encoded)
    count.check()
    return encoded
