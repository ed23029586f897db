"""No reply has a secret in it, whole or streamed, wherever the pieces are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.deltas import cut, join, whole
from swe_core.api.engine import ChatRequest, Completion, Delta, EngineSession
from swe_core.errors import RequestRefused
from swe_core.interception.dialects import DIALECTS
from swe_core.interception.redaction import RedactedPieces
from swe_core.interception.server import InterceptionServer
from swe_core.system.redaction import MARK, Redactor

from .helpers import Plugin, events_of, talk

CANARY = "sk-canary/0815-4711"
ESCAPED = CANARY.replace("/", "\\/")


def redactor_of(*secrets: str) -> Redactor:
    redactor = Redactor()
    for secret in secrets:
        redactor.add(secret)
    return redactor


def shown(deltas: Sequence[Delta], redactor: Redactor) -> list[Delta]:
    pieces = RedactedPieces(redactor)
    return [*pieces.add(deltas), *pieces.rest()]


def call(index: int, arguments: str, **more: Any) -> Delta:
    return {"tool_calls": [{"index": index, **more, "function": {"arguments": arguments}}]}


def cut_at(at: int, where: str) -> Iterator[Delta]:
    """The canary in two pieces of one field."""
    first, second = CANARY[:at], CANARY[at:]
    if where == "name":
        for index, part in enumerate((first, second)):
            yield {"tool_calls": [{"index": 0, "id": f"c{index}", "function": {"name": part}}]}
    elif where == "arguments":
        yield call(1, f'{{"a": "{first}', id="c1")
        yield call(0, "{}", id="c0")
        yield call(1, f'{second}"}}')
    elif where == "details":
        yield {"reasoning_details": [{"type": "text", "text": f"I see {first}"}]}
        yield {"reasoning_details": [{"type": "text", "text": f"{second} there"}]}
    else:
        yield {where: f"I see {first}"}
        yield {where: f"{second} there"}


@pytest.mark.parametrize("where", ["content", "unheard_of", "arguments", "name", "details"])
def test_secret_split_over_two_pieces_is_redacted(where: str) -> None:
    for at in range(len(CANARY) + 1):
        given = list(cut_at(at, where))
        seen = shown(given, redactor_of(CANARY))
        assert CANARY not in json.dumps(seen).replace("\\/", "/")
        assert CANARY not in _by_field(seen), at
        assert CANARY in _by_field(given), at
        if where not in ("name", "details", "arguments"):  # of which something goes out at once
            assert join(seen) == redactor_of(CANARY).value(join(given))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _by_field(deltas: Sequence[Delta]) -> str:
    """Return the text of a client that joins each field, calls by their index."""
    found: dict[tuple[Any, ...], str] = {}

    def take(value: Any, place: tuple[Any, ...]) -> None:
        if isinstance(value, str):
            found[place] = found.get(place, "") + value
        elif isinstance(value, Mapping):
            for key, one in value.items():
                take(one, (*place, key))
        elif isinstance(value, list):
            for one in value:
                take(one, (*place, one.get("index") if isinstance(one, Mapping) else None))

    for delta in deltas:
        take(delta, ())
    return " ".join(found.values())


PARTS = ["ab", "b", "abcabcab", "abcabcabX", "cabX ", "ab/c", "ab\\/c", "abXY", "abca", " ", '"']
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8)
SETS = [("abcabcab",), ("ab/cabXY",), ("abcabcab", "abcabcabX", "ab/cabca")]


@given(TEXTS, TEXTS, TEXTS, st.integers(1, 12), st.sampled_from(SETS))
def test_redacted_pieces_join_to_the_redacted_reply(
    content: list[str], reasoning: list[str], arguments: list[str], size: int, secrets: tuple[str, ...]
) -> None:
    """Secrets that overlap, begin alike, and stand beside their beginnings."""
    redactor = redactor_of(*secrets)
    message = {
        "role": "assistant",
        "reasoning_content": "".join(reasoning),
        "content": "".join(content),
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "".join(arguments)}}
        ],
    }
    seen = join(shown(list(cut(message, size)), redactor))
    if secrets == SETS[1]:  # of places that overlap, any one may be replaced
        assert seen == redactor.value(message)
    assert not any(secret in text for secret in secrets for text in _texts(seen))


def test_ordinary_text_is_not_held_back() -> None:
    """Text that ends as a secret begins is sent before the next field."""
    pieces = RedactedPieces(redactor_of(CANARY))
    assert list(pieces.add([{"reasoning_content": "It is this"}])) == [{"reasoning_content": "It is thi"}]
    assert list(pieces.add([{"content": "Yes."}])) == [{"reasoning_content": "s"}, {"content": "Yes."}]
    assert list(pieces.add([{"content": " A list of s"}])) == [{"content": " A list of "}]
    given = whole({"tool_calls": [{"id": "call_s", "function": {"name": "ls", "arguments": "{}"}}]})
    assert list(pieces.add([given])) == [{"content": "s"}, given]
    assert list(pieces.rest()) == []


class Echo(Plugin):
    """Echoes the canary in every field that a reply has, one letter a piece."""

    def __init__(self) -> None:
        function = {"name": f"say {CANARY}", "arguments": json.dumps({"a": CANARY, "b": f"x{CANARY}y"})}
        self.message = {
            "role": "assistant",
            "reasoning_content": f"The key is {CANARY}.",
            "content": f"It is {CANARY}, I think, or sk-canary",
            "refusal": CANARY,
            CANARY: {"deep": [CANARY]},
            "tool_calls": [
                {"id": CANARY, "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": {"name": "ls", "arguments": f'["{ESCAPED}"]'}},
            ],
        }
        super().__init__(Completion(self.message, f"stop {CANARY}", model=CANARY))

    async def complete(self, request: ChatRequest, session: EngineSession, emit: Any = None) -> Completion:
        for delta in cut(self.message, 1) if emit is not None else ():
            await emit(delta)
        return await super().complete(request, session, emit)


@pytest.mark.parametrize("stream", [False, True])
async def test_reply_that_echoes_the_key_is_redacted(stream: bool) -> None:
    engine = Echo()
    async with InterceptionServer(redactor=redactor_of(CANARY)) as server, talk(server, engine) as talked:
        sent = await talked.ask(stream=stream)
    assert sent.status_code == 200
    assert CANARY not in sent.text
    (turn,) = talked.turns
    assert CANARY not in turn.model_dump_json()
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events_of(sent.content, DIALECTS[0])[:-1]]
        assert CANARY not in _by_field(deltas)
        said = join(deltas)
    else:
        said = sent.json()["choices"][0]["message"]
    assert said == turn.reply == redactor_of(CANARY).value(engine.message)
    assert said["content"] == f"It is {MARK}, I think, or sk-canary"
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": MARK, "b": f"x{MARK}y"}
    assert json.loads(said["tool_calls"][1]["function"]["arguments"]) == [MARK]


@pytest.mark.parametrize("stream", [False, True])
async def test_rejection_that_quotes_the_key_is_redacted(stream: bool) -> None:
    engine = Plugin(RequestRefused(f"no such request for {CANARY}", 400))
    async with InterceptionServer(redactor=redactor_of(CANARY)) as server, talk(server, engine) as talked:
        sent = await talked.ask(stream=stream)
    assert sent.status_code == 400
    assert f"no such request for {MARK}" in sent.text


def test_key_that_is_a_prefix_of_another_is_redacted() -> None:
    """Its first letters are sent as another field begins; the rest waits for the longer key."""
    pieces = RedactedPieces(redactor_of("sk-live-0123456789", "sk-live-0123456789-org"))
    said = list(pieces.add([{"content": "sk-live"}, {"reasoning_content": "hm"}, {"content": "-0123456789"}]))
    assert "-0123456789" not in "".join(delta.get("content", "") for delta in [*said, *pieces.rest()])
