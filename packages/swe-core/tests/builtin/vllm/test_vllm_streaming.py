"""What is streamed while a reply is sampled: always the beginning of the whole message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.deltas import join
from swe_core.api.engine import Delta
from swe_core.api.messages import Message
from swe_core.builtin.vllm.streaming import Streamer, cut
from swe_core.errors import EngineError
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_testing.provider import Ear


class Letters(Renderer):
    """One id per character; the text before the first "|" is reasoning.

    Args:
        takes_back: Text after which a completion reads differently.
    """

    name = "letters"
    how = "bridge"
    stop_ids = frozenset({0})
    streams = splits = True
    marks = frozenset({ord("|")})
    finds_calls = True

    def __init__(self, takes_back: str | None = None) -> None:
        self.takes_back = takes_back
        self.parsed = 0

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        raise NotImplementedError

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        raise NotImplementedError

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        self.parsed += len(completion)
        text = "".join(map(chr, completion))
        if self.takes_back is not None and self.takes_back in text:
            return Parsed("something else")
        before, bar, after = text.partition("|")
        return Parsed(after, before) if bar else Parsed("", before)

    def text(self, ids: Sequence[int]) -> str:
        self.parsed += len(ids)
        return "".join(map(chr, ids))


async def stream(
    renderer: Letters, text: str, sizes: Sequence[int] = (1,), stops: Sequence[str] = ()
) -> tuple[dict[str, Any], Ear]:
    ear = Ear()
    ids: list[int] = []
    streamer = Streamer(renderer, ids, [], None, ear, stops)
    coming, turn = [ord(char) for char in text], 0
    while len(ids) < len(coming):
        ids += coming[len(ids) : len(ids) + sizes[turn % len(sizes)]]
        turn += 1
        await streamer.grown()
    parsed = renderer.parse(ids, [], None)
    message: dict[str, Any] = {"role": "assistant", "content": cut(parsed.content, stops)}
    if parsed.reasoning:
        message["reasoning_content"] = cut(parsed.reasoning, stops)
    await streamer.finish(message)
    return message, ear


texts = st.text(alphabet="ab|x", min_size=20, max_size=120)
stop_texts = st.sampled_from([(), ("xx",), ("a", "bxb"), ("bbbbbb",)])


@given(texts, st.lists(st.integers(1, 12), min_size=1, max_size=4), stop_texts)
async def test_pieces_join_to_the_message(text: str, sizes: list[int], stops: Sequence[str]) -> None:
    message, ear = await stream(Letters(), text, sizes, stops)
    told = join(ear.heard)
    assert (told["content"] or "") == message["content"]
    assert told.get("reasoning_content") == (message.get("reasoning_content") or None)


async def test_pieces_arrive_before_the_end_with_the_text_so_far() -> None:
    _, ear = await stream(Letters(), "thinking it over|and saying it at length")
    assert len(ear.heard) > 3
    assert "reasoning_content" in ear.heard[0]
    ear, ids = Ear(), list[int]()
    streamer = Streamer(Letters(), ids, [], None, ear, ())
    for char in "|and the te":
        ids.append(ord(char))
        await streamer.grown()
    assert join(ear.heard)["content"] == "and the te", "as when the wall budget cuts the call"


async def test_unread_pieces_become_one_at_the_end() -> None:
    """A reader that is late or slow causes no work in between."""
    emitted: list[Delta] = []

    async def keep(delta: Delta) -> None:
        emitted.append(delta)

    renderer, ids = Letters(), list[int]()
    streamer = Streamer(renderer, ids, [], None, keep, ())
    for char in "a thought|and the text":
        ids.append(ord(char))
        await streamer.grown()
    assert renderer.parsed == 0
    message = {"role": "assistant", "content": "and the text", "reasoning_content": "a thought"}
    await streamer.finish(message)
    assert len(emitted) == 1
    assert join(emitted) == message
    assert renderer.parsed == 0


async def test_repeated_reads_of_a_long_reply_are_near_linear() -> None:
    renderer = Letters()
    await stream(renderer, "|" + "a" * 20_000)
    assert renderer.parsed < 25 * 20_000


async def test_renderer_that_retracts_text_is_an_error() -> None:
    with pytest.raises(EngineError, match="'letters' took back reasoning_content"):
        await stream(Letters(takes_back="!"), "some reasoning that goes out, and then!")
