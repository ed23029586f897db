"""Server-sent events, in whatever pieces they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.builtin.sse import events

STREAM = (
    b": a comment\n\nevent: x\ndata: one\n\ndata:two\r\n\r\ndata: three\ndata: lines\n\nid: 1\n\n"
    b"data: \xe2\x80\xa8 is no line's end\n\ndata: cut off"
)
EVENTS = [b"one", b"two", b"three\nlines", b"\xe2\x80\xa8 is no line's end"]


async def _in_pieces(cuts: list[int]) -> AsyncIterator[bytes]:
    edges = sorted({0, *cuts, len(STREAM)})
    for start, end in pairwise(edges):
        yield STREAM[start:end]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_pieces_make_no_difference(cuts: list[int]) -> None:
    async def read() -> list[bytes]:
        return [event async for event in events(_in_pieces(cuts))]

    assert anyio.run(read) == EVENTS


@pytest.mark.anyio
async def test_a_stream_of_nothing() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        return
        yield b""

    assert [event async for event in events(nothing())] == []
