"""The exact bytes come back, however what follow.sh says is cut, and wherever it breaks off."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.sandbox import Stream
from swe_core.sandboxing.followed.feed import Feed, Garbled


def follow(out: bytes, err: bytes, at: dict[Stream, int], chunk: int, code: int) -> str:
    """What follow.sh says of streams of which all is there, from these offsets on."""
    said = [".s\n"]
    for letter, data, offset in (("o", out, at["stdout"]), ("e", err, at["stderr"])):
        for start in range(offset, len(data), chunk):
            said += [f".{letter} {start}\n", base64.encodebytes(data[start : start + chunk]).decode(), ".t\n"]
    return "".join([*said, f".x {code}\n"])


@settings(deadline=None)
@given(
    out=st.binary(max_size=600),
    err=st.binary(max_size=200),
    chunk=st.integers(1, 300),
    code=st.integers(0, 255),
    breaks=st.lists(st.integers(0, 1200), max_size=5),
    cuts=st.integers(1, 50),
)
def test_any_cut_and_any_break(
    out: bytes, err: bytes, chunk: int, code: int, breaks: list[int], cuts: int
) -> None:
    feed = Feed()
    got: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
    for end in [*breaks, None]:
        text = follow(out, err, feed.offsets, chunk, code)[:end]
        for start in range(0, len(text), cuts):
            for stream, data in feed.add(text[start : start + cuts]):
                got[stream] += data
        if feed.code is not None:
            break
        feed.broken()
    assert (got, feed.code, feed.started) == ({"stdout": out, "stderr": err}, code, True)


def test_what_follow_does_not_say_is_garbled() -> None:
    for text in (
        "<html>502 Bad Gateway</html>\n",
        ".o 5\n",  # bytes that nobody asked for
        ".o x\n",
        ".o \u0663\n",
        f".x {'1' * 5000}\n",
        ".x\n",
        ".s\n.o 0\nnot base64!\n",
        ".s\n.o 0\nQUJ\n",  # a line that was cut
        ".unknown\n",
        "\x00\n",
        "\n",
        ".s\n.o 0\n\n",
    ):
        with pytest.raises(Garbled):
            list(Feed().add(text))


def test_line_without_an_end_is_not_kept() -> None:
    feed = Feed()
    for _ in range(32):
        assert list(feed.add("x" * 65536)) == []
    with pytest.raises(Garbled, match="a line of more than"):
        list(feed.add("x"))
