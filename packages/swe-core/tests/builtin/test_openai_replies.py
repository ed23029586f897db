"""Replies of providers that are not quite OpenAI's: what is relayed, what is recorded, what is an error."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.deltas import join
from swe_core.api.engine import Completion
from swe_core.builtin.http_engine import ErrorTranslator, Transient
from swe_core.builtin.openai.pieces import Pieces
from swe_core.builtin.openai.replies import StreamedReply, parse_reply
from swe_core.builtin.sse import EventParser
from swe_core.errors import EngineProtocolError, EngineUnavailable, RequestRefused
from swe_testing.provider import Ear

URL = "http://h/v1"
REFUSALS = ErrorTranslator("provider", URL, "", "m", "KEY", None)
ONE, TWO = '{"a":"one"}', '{"b":"two"}'
BEGUN, REST = '{"a":', '"one"}'


def _call(index: Any, id: Any, name: Any, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}, **more}


CALLS: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "parallel calls share an index": (
        [_call(0, "x", "sh", ONE), _call(0, "y", "read", TWO)],
        [("sh", ONE), ("read", TWO)],
    ),
    "parallel calls share an index and are cut": (
        [_call(0, "x", "sh", BEGUN), _call(0, "y", "sh", BEGUN), _call(0, "x", None, REST)],
        [("sh", ONE), ("sh", BEGUN)],
    ),
    "one chunk": ([[_call(0, "", "now", "{}"), _call(0, "", "now", "{}")]], [("now", "{}")] * 2),
    "no index": ([_call(None, "x", "sh", ONE), _call(None, "y", "sh", TWO)], [("sh", ONE), ("sh", TWO)]),
    "no index, no id": (
        [_call(None, None, "sh", ONE), _call(None, "", "sh", TWO)],
        [("sh", ONE), ("sh", TWO)],
    ),
    "index as text": ([_call("0", "x", "sh", BEGUN), _call("0", None, None, REST)], [("sh", ONE)]),
    "index as a float": (
        [_call(i, "", "sh", t) for t in (BEGUN, REST) for i in (0.0, 1.0)],
        [("sh", ONE)] * 2,
    ),
    "index from 1": ([_call(1, "x", "sh", ONE), _call(2, "y", "sh", TWO)], [("sh", ONE), ("sh", TWO)]),
    "index comes later": ([_call(None, "x", "sh", ""), _call(0, None, None, ONE)], [("sh", ONE)]),
    "interleaved": (
        [_call(i, i, "sh", "") for i in (0, 1)] + [_call(i, i, "", t) for t in (BEGUN, REST) for i in (0, 1)],
        [("sh", ONE)] * 2,
    ),
    "id on each piece": ([_call(0, "x", "sh", BEGUN), _call(0, "x", "sh", REST)], [("sh", ONE)]),
    "fresh id on each piece": ([_call(0, "x", "sh", BEGUN), _call(0, "y", None, REST)], [("sh", ONE)]),
    "fresh id and name": ([_call(0, "x", "sh", BEGUN), _call(0, "y", "sh", REST)], [("sh", ONE)]),
    "fresh index on each piece": ([_call(0, "x", "sh", BEGUN), _call(1, "x", "sh", REST)], [("sh", ONE)]),
    "one id for two calls": ([_call(i, "x", "sh", ONE) for i in (0, 1)], [("sh", ONE)] * 2),
    "one id and index for two": (
        [_call(0, "x", "sh", ONE), _call(0, "x", "sh", TWO)],
        [("sh", ONE), ("sh", TWO)],
    ),
    "name in pieces": (
        [_call(0, "x", "s", ""), _call(0, None, "h", None), _call(0, "", "", ONE)],
        [("sh", ONE)],
    ),
    "no name and no arguments": ([_call(0, "", "", "")], []),
    "no index, no id, name first": (
        [_call(None, "", name, t) for t in (ONE, TWO) for name, t in (("sh", ""), ("", t))],
        [("sh", ONE), ("sh", TWO)],
    ),
    "named again at the end": ([_call(0, "", "sh", t) for t in (ONE, "")], [("sh", ONE)]),
    "fresh index without name and id": (
        [_call(0, "x", "sh", BEGUN), _call(1, None, None, REST), _call(2, "", "", None)],
        [("sh", ONE)],
    ),
    "in one text": (
        [_call(i, "x", "sh", t) for i, t in enumerate((ONE * 3, "{}" + TWO))],
        [("sh", ONE), ("sh", TWO)],
    ),
    "in one text, cut": ([_call(0, "x", "sh", t) for t in (BEGUN, REST + ONE)], [("sh", ONE)]),
    "in a text": ([_call(0, "x", "sh", json.dumps(ONE))], [("sh", ONE)]),
    "null as a text": ([_call(0, "x", "sh", "null")], [("sh", "{}")]),
    "two in one text": ([_call(0, "x", "sh", ONE + TWO)], [("sh", ONE + TWO)]),
    "null": ([[None, _call(0, "x", "sh", ONE)]], [("sh", ONE)]),
    "no arguments": ([_call(0, "x", "now", None), _call(0, "y", "sh", ONE)], [("now", "{}"), ("sh", ONE)]),
    "objects": ([_call(0, "x", "sh", {"a": "one"}), _call(0, "y", "sh", [1])], [("sh", ONE), ("sh", "[1]")]),
    "so far": ([_call(0, "x", "sh", t) for t in ("", BEGUN, BEGUN + '"o', ONE, ONE)], [("sh", ONE)]),
    "again at the end": ([_call(0, "x", "sh", t) for t in (BEGUN, REST, ONE)], [("sh", ONE)]),
    "again, written otherwise": (
        [_call(0, "x", name, t) for name, t in (("sh", BEGUN), ("", REST), ("", '{"c":1,"a":"one"}'))],
        [("sh", ONE)],
    ),
    "all again": (
        [_call(i, i, "sh", t) for i in (0, 1) for t in (BEGUN, REST)]
        + [[_call(i, i, "sh", ONE) for i in (0, 1)]],
        [("sh", ONE)] * 2,
    ),
    "empty object first": ([_call(0, "x", "sh", t) for t in ("{}", BEGUN, REST)], [("sh", ONE)]),
    "nested": ([_call(0, "x", "sh", t) for t in (BEGUN, BEGUN + "1}", "}")], [("sh", '{"a":{"a":1}}')]),
    "braces in a text": (
        [_call(0, "x", "sh", t) for t in ('{"a":"{ }', "{", '}"}')],
        [("sh", '{"a":"{ }{}"}')],
    ),
    "cut": ([_call(0, "x", "sh", t) for t in (BEGUN, '"o')], [("sh", BEGUN + '"o')]),
}


@pytest.mark.parametrize(("pieces", "calls"), CALLS.values(), ids=CALLS)
def test_streamed_calls_are_told_apart_and_recorded_as_relayed(
    pieces: list[Any], calls: list[tuple[str, str]]
) -> None:
    reader = Pieces()
    relayed = [reader.add({"tool_calls": piece if isinstance(piece, list) else [piece]}) for piece in pieces]
    relayed.append(reader.rest())
    assert join(relayed) == reader.message()
    found = reader.message().get("tool_calls", [])
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in found] == calls
    assert len({call["id"] for call in found if call["id"]}) == len(calls)
    order = list(dict.fromkeys(call["index"] for delta in relayed for call in delta.get("tool_calls", [])))
    assert order == list(range(len(calls)))


def test_usual_arguments_are_relayed_as_they_come_and_other_fields_stay() -> None:
    reader = Pieces()
    pieces = [
        _call(0, "x", "sh", '{"a":', extra_content={"s": 1}),
        _call(0, None, None, '"o'),
        _call(0, None, None, "n"),
    ]
    texts = [
        reader.add({"tool_calls": [piece]})["tool_calls"][0]["function"]["arguments"] for piece in pieces
    ]
    assert texts == ['{"a":', '"o', "n"]
    assert reader.message()["tool_calls"][0]["extra_content"] == {"s": 1}


def _think(*texts: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text} for text in texts]}


PARTS = [
    _think("hm", ", "),
    {"type": "thinking", "thinking": "yes"},
    {"type": "reference", "reference_ids": [1]},
]
PARTS += [{"type": "text", "text": "I "}, "look"]


def test_parts_are_text_and_reasoning() -> None:
    expected = {"role": "assistant", "reasoning_content": "hm, yes", "content": "I look"}
    reader = Pieces()
    for part in PARTS:
        reader.add({"content": [part]})
    assert reader.message() == expected
    assert _parsed({"content": PARTS}).message == expected


def _parsed(message: dict[str, Any], usage: Any = None, **choice: Any) -> Completion:
    body = {"choices": [{"message": message, **choice}], "usage": usage}
    return parse_reply(json.dumps(body).encode(), {}, URL, REFUSALS)


async def _streamed(
    *deltas: Any, cut: list[bytes] | None = None, ear: Ear | None = None, **choice: Any
) -> Completion:
    reply = StreamedReply(URL, ear or Ear(), REFUSALS, 10**6)
    for delta in deltas:
        await reply.add(json.dumps({"choices": [{"delta": delta}]}).encode())
    await reply.add(json.dumps({"choices": [{"index": None, **choice}]}).encode())
    return await reply.completion(cut or [b"[DONE]"])


SAID = {"content": "I begin"}
CALLED = {"tool_calls": [_call(0, "x", "sh", {"a": "one"})]}


@pytest.mark.parametrize(
    ("message", "given", "reason"),
    [
        *((SAID, given, "stop") for given in (None, "eos", "STOP", "end_turn", "null", "what is this", 3)),
        *((SAID, given, "length") for given in ("MAX_TOKENS", "max-tokens", "model_length")),
        *((CALLED, given, "tool_calls") for given in ("tool_use", "function_call", "stop", "?", None)),
        *((SAID, given, "content_filter") for given in ("content_filter", "SAFETY")),
        ({}, "stop", "stop"),
        ({**SAID, "tool_calls": {}}, "tool_calls", "stop"),
        ({"function_call": {"name": "sh", "arguments": ONE}}, "stop", "tool_calls"),
    ],
)
async def test_finish_reason_is_the_one_of_openai_that_it_means(
    message: Any, given: Any, reason: str
) -> None:
    assert (await _streamed(message, finish_reason=given)).finish_reason == reason
    whole = _parsed(message, finish_reason=given)
    assert whole.finish_reason == reason
    if message is CALLED:
        assert whole.message["tool_calls"][0]["function"] == {"name": "sh", "arguments": ONE}


@pytest.mark.parametrize(
    "choice",
    [
        *({"finish_reason": reason} for reason in ("error", "ERROR", "network_error", "abort")),
        {"finish_reason": "function_call_filter: MALFORMED_FUNCTION_CALL"},
        {"finish_reason": "stop", "native_finish_reason": "UNEXPECTED_TOOL_CALL"},
        {"finish_reason": "stop", "error": {"code": 502, "message": "upstream"}},
    ],
)
async def test_broken_off_reply_is_an_error_of_the_engine(choice: dict[str, Any]) -> None:
    for message in ({}, SAID):
        with pytest.raises(Transient):
            _parsed(message, **choice)
    with pytest.raises(Transient):
        await _streamed(**choice)
    with pytest.raises(EngineUnavailable, match="in the middle of a reply"):
        await _streamed(SAID, **choice)


async def test_empty_reply_without_a_reason_is_an_error_of_the_engine() -> None:
    for reason in ("other", "tool_calls", None):
        with pytest.raises(Transient, match="an empty reply"):
            _parsed({"content": None, "reasoning": "hm"}, finish_reason=reason)
    with pytest.raises(Transient, match="an empty reply"):
        await _streamed({"content": ""})


@pytest.mark.parametrize("counts", [-1, 2.5e300, None, "7", True, [1]])
def test_nonsense_usage_is_unknown(counts: Any) -> None:
    usage = _parsed(SAID, {"prompt_tokens": counts, "completion_tokens": 7.0}).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (1 if counts is True else 0, 7)
    assert _parsed(SAID, counts).usage.prompt_tokens == 0


def _chunk(text: str, **more: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, **more}]}).encode()


@given(st.lists(st.integers(0, 400), max_size=5), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
async def test_odd_streams_are_read(cuts: list[int], end: bytes, blank: bool) -> None:
    """Comments, empty events, chunks without choices, no space, no blank lines, no end."""
    odd = [b": keep-alive", b"data: ", b'data: {"choices": null}', b'data: {"choices": [], "usage": []}']
    lines = [*odd, b"data:" + _chunk("a"), *odd, b"data: " + _chunk("b", finish_reason="stop")]
    stream = (end * (2 if blank else 1)).join(lines)
    parser, reply, ear = EventParser(10**6, 10**6), StreamedReply(URL, Ear(), REFUSALS, 10**6), Ear()
    reply._emit = ear
    for start, stop in pairwise(sorted({0, *cuts, len(stream)})):
        for event in parser.feed(stream[start:stop]):
            await reply.add(event)
    completion = await reply.completion(parser.feed(b"\n\n"))
    assert completion.message["content"] == ear.text() == "ab"


async def test_streamed_whole_reply_is_read_and_repeats_no_pieces() -> None:
    for deltas in ((), (SAID,)):
        assert (await _streamed(*deltas, message=SAID, finish_reason="stop")).message["content"] == "I begin"


@pytest.mark.parametrize("code", [400, "422", "context_length_exceeded"])
async def test_reply_that_has_begun_is_no_refusal_of_the_request(code: Any) -> None:
    error = {"error": {"message": "boom", "code": code}}
    for body in (error, {"choices": [{"delta": {}, **error}]}):
        with pytest.raises(RequestRefused):
            await StreamedReply(URL, None, REFUSALS, 10**6).add(json.dumps(body).encode())
        reply = StreamedReply(URL, Ear(), REFUSALS, 10**6)
        await reply.add(_chunk("a"))
        with pytest.raises(EngineUnavailable, match="boom"):
            await reply.add(json.dumps(body).encode())
    with pytest.raises(RequestRefused):
        _parsed({"content": None}, **error)
    with pytest.raises(Transient):
        _parsed(SAID, **error)


async def test_bare_error_in_a_stream_is_an_error_of_the_engine() -> None:
    reply = StreamedReply(URL, None, REFUSALS, 10**6)
    with pytest.raises(Transient, match="boom"):
        await reply.add(b'{"object": "error", "message": "boom", "code": 503}')


@pytest.mark.parametrize(
    ("text", "usage", "said"),
    [
        (b"a", b"NaN", "a"),
        (b"a", b"1e999", "a"),
        (rb"\ud83d", b"1", "?"),
        (b"a\xf0", b"1", "a\ufffd"),
        (b"\t", b"1", "\t"),
    ],
)
async def test_json_of_lax_writers_is_read(text: bytes, usage: bytes, said: str) -> None:
    body = (
        b'{"choices": [{"%%b": {"content": "%b"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": %b}}'
    )
    body %= text, usage
    assert parse_reply(body % b"message", {}, URL, REFUSALS).message["content"] == said
    reply = StreamedReply(URL, None, REFUSALS, 10**6)
    for event in (b"null", body % b"delta", b"[DONE]"):
        await reply.add(event)
    assert (await reply.completion()).message["content"] == said


async def test_cut_event_is_no_reply() -> None:
    reply = StreamedReply(URL, None, REFUSALS, 10**6)
    with pytest.raises(Transient, match="ended early"):
        await reply.completion([_chunk("a", finish_reason="stop")[:-3]])
    for malformed in (["x"], "x", [{"function": "f"}]):
        with pytest.raises(EngineProtocolError):
            _parsed({"tool_calls": malformed})
        with pytest.raises(EngineProtocolError):
            await _streamed({"tool_calls": malformed})


def test_last_field_of_a_cut_call_is_told() -> None:
    pieces = Pieces()
    sent = ({"name": "bash", "arguments": '{"a'}, {"arguments": "", "cache": 1})
    told = [pieces.add({"tool_calls": [{"index": 0, "id": "a", "function": one}]}) for one in sent]
    told.append(pieces.rest())
    assert join(told) == pieces.message()
    assert pieces.message()["tool_calls"][0]["function"] == {"name": "bash", "cache": 1, "arguments": '{"a'}
