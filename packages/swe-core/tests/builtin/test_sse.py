"""Server-sent events, in whatever pieces they come."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swe_core.builtin.sse import EventParser

STREAM = (
    b": a comment\n\nevent: x\ndata: one\n\ndata:two\r\n\r\ndata: three\ndata: lines\n\nid: 1\n\n"
    b"data: \xe2\x80\xa8 is no line's end\n\ndata: cut off"
)
EVENTS = [b"one", b"two", b"three\nlines", b"\xe2\x80\xa8 is no line's end"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_event_parser_accepts_any_pieces(cuts: list[int]) -> None:
    parser = EventParser()
    pieces = [STREAM[start:end] for start, end in pairwise(sorted({0, *cuts, len(STREAM)}))]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS
