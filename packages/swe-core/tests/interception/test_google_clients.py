"""Conversations in the Gemini API through the server, by Google's SDK over real sockets."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
import pytest

from swe_core.api.limits import Budgets
from swe_core.api.messages import Message, message_key
from swe_core.api.records import Turn
from swe_core.errors import ContextOverflow
from swe_core.interception.gate import GONE, SPENT, Gate
from swe_core.interception.server import ENGINE_FAILED, InterceptionServer
from swe_core.interception.sse import EventStream
from swe_testing.provider import call_tool, say

from .helpers import Script, Typist, fails_after_a_piece, root, who

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.client import AsyncClient

pytestmark = [
    pytest.mark.anyio,
    # The SDK's own class.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

MODEL = "owner/model"
"""The SDK puts such a name into the path as it is."""
HI = {"contents": [{"parts": [{"text": "hi"}]}]}


def sdk(server: InterceptionServer, gate: Gate, key: str | None = None, **options: Any) -> Client:
    from google.genai import Client
    from google.genai.types import HttpOptions

    http_options = HttpOptions(base_url=root(server, gate), **options)
    return Client(api_key=key or gate.token, http_options=http_options)


@asynccontextmanager
async def by_hand(server: InterceptionServer, gate: Gate) -> AsyncIterator[httpx.AsyncClient]:
    base, headers = f"{root(server, gate)}/v1beta/models", {"x-goog-api-key": gate.token}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as client:
        yield client


def calls(*args: dict[str, Any]) -> Message:
    """Return a reply that calls the tool `add` once for each of `args`."""
    made = [call_tool("add", one, f"c{number}").message["tool_calls"][0] for number, one in enumerate(args)]
    return {"role": "assistant", "content": "I add.", "reasoning_content": "hm", "tool_calls": made}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_of_the_sdk_sends_each_reply_back(server: InterceptionServer, streamed: bool) -> None:
    """With automatic function calls, and thoughts in the history."""
    turns: list[Turn] = []
    said = [calls({"b": 2, "a": 1}, {"a": 1.0, "b": 2}), say("3 and 3").message, say("bye").message]
    engine = Script(*said)
    async with server.session(engine, who(), turns.append) as gate:
        async with sdk(server, gate).aio as client:
            config = {
                "tools": [add],
                "system_instruction": "be brief",
                "thinking_config": {"include_thoughts": True},
            }
            chat = client.chats.create(model=MODEL, config=config)
            texts = []
            for asked in ("1+2, twice", "thanks"):
                if streamed:
                    pieces = await chat.send_message_stream(asked)
                    texts.append("".join([piece.text or "" async for piece in pieces]))
                else:
                    texts.append((await chat.send_message(asked)).text)
    assert texts[-1] == "bye"
    assert texts[0].endswith("3 and 3")
    assert [turn.dialect for turn in turns] == ["google"] * 3
    assert [turn.error for turn in turns] == [None] * 3
    assert turns[0].reply == said[0]
    first, second, third = (request.messages for request in engine.requests)
    assert first == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+2, twice"}]
    assert list(map(message_key, second[:3])) == list(map(message_key, [*first, said[0]]))
    assert second[2]["reasoning_content"] == "hm"
    ids = [call["id"] for call in second[2]["tool_calls"]]
    assert second[3:] == [{"role": "tool", "content": '{"result":3}', "tool_call_id": id} for id in ids]
    assert list(map(message_key, third)) == [
        *map(message_key, [*second, said[1]]),
        ("user", "thanks"),
    ]
    tool = engine.requests[0].tools[0]["function"]  # type: ignore[index]  # this request has tools
    assert (tool["name"], tool["description"]) == ("add", "Add two numbers.")
    assert tool["parameters"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}


@pytest.mark.parametrize("version", ["v1", "v1beta"])
@pytest.mark.parametrize("thoughts", [False, True])
async def test_reply_through_the_sdk(server: InterceptionServer, version: str, thoughts: bool) -> None:
    engine = Script(*[calls({"a": 1, "b": 2})] * 2)
    config: Any = {"max_output_tokens": 50, "thinking_config": {"include_thoughts": thoughts}}
    async with server.session(engine, who(), list[Turn]().append) as gate:
        async with sdk(server, gate, api_version=version).aio as client:
            whole = await client.models.generate_content(model=MODEL, contents="hi", config=config)
            pieces = await client.models.generate_content_stream(model=MODEL, contents="hi", config=config)
            chunks = [chunk async for chunk in pieces]
    for reply in (whole, chunks[-1]):
        (call,) = reply.function_calls
        assert (call.id, call.name, call.args) == ("c0", "add", {"a": 1, "b": 2})
        assert reply.candidates[0].finish_reason == "STOP"
        used = reply.usage_metadata
        counts = used.prompt_token_count, used.candidates_token_count, used.total_token_count
        assert counts == (7, 9, 16)
        assert reply.model_version == "plugin"
    assert len({chunk.response_id for chunk in chunks}) == 1
    for parts in (whole.parts, [part for chunk in chunks for part in chunk.parts]):
        spoken = [(part.thought or False, part.text) for part in parts if part.text]
        assert "".join(text for thought, text in spoken if not thought) == "I add."
        assert "".join(text for thought, text in spoken if thought) == ("hm" if thoughts else "")
    assert [request.max_tokens for request in engine.requests] == [50, 50]
    assert [request.body["model"] for request in engine.requests] == [MODEL] * 2


@pytest.mark.parametrize("counts", [5, None])
async def test_tokens_of_a_prompt_are_counted(server: InterceptionServer, counts: int | None) -> None:
    turns: list[Turn] = []
    engine = Script(counts=counts)
    async with server.session(engine, who(), turns.append) as gate, sdk(server, gate).aio as client:
        counted = await client.models.count_tokens(model=MODEL, contents="hello")
    assert counted.total_tokens == counts if counts else 0 < counted.total_tokens < 20  # or an estimate
    assert engine.requests[0].messages == [{"role": "user", "content": "hello"}]
    assert turns == []


def _stream(client: Client) -> list[str]:
    """Return the texts of a streamed reply, through the SDK's blocking client."""
    return [chunk.text for chunk in client.models.generate_content_stream(model=MODEL, contents="hi")]


async def _stream_async(client: Client) -> list[str]:
    pieces = await client.aio.models.generate_content_stream(model=MODEL, contents="hi")
    return [chunk.text async for chunk in pieces]


async def _stream_by_httpx(client: Client) -> list[str]:
    return await anyio.to_thread.run_sync(_stream, client)


@pytest.mark.parametrize("stream", [_stream_async, _stream_by_httpx])
async def test_sdk_ignores_keepalives(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    """Before the first piece, between pieces and before the last event."""
    sent: list[bytes] = []
    engine = Typist("ab", letters=0)
    send = EventStream.send

    async def watched(self: EventStream, data: bytes) -> None:
        await send(self, data)
        sent.append(data)
        if sent[-2:] == [b"\n", b"\n"]:
            engine.let(1)

    monkeypatch.setattr(EventStream, "send", watched)
    async with InterceptionServer(keepalive=0.01) as server:
        async with server.session(engine, who(), list[Turn]().append) as gate:
            with sdk(server, gate) as client, anyio.fail_after(60):
                texts = await stream(client)
    assert "".join(texts) == "ab"
    first = next(index for index, data in enumerate(sent) if data.startswith(b"data"))
    assert sent[:first].count(b"\n") >= 2
    assert sent[first:].count(b"\n") >= 2


async def test_pieces_arrive_during_generation(server: InterceptionServer) -> None:
    engine = Typist("ab", letters=1)
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate).aio as client:
        pieces = await client.models.generate_content_stream(model=MODEL, contents="hi")
        with anyio.fail_after(60):
            assert (await anext(aiter(pieces))).text == "a"
            engine.let(1)
            assert [chunk.text async for chunk in pieces] == ["b", ""]


async def test_stream_without_alt_is_a_json_array(server: InterceptionServer) -> None:
    async with server.session(Script(say("abcd").message), who(), list[Turn]().append) as gate:
        async with by_hand(server, gate) as http:
            reply = await http.post(f"/{MODEL}:streamGenerateContent", json=HI)
    assert reply.headers["Content-Type"] == "application/json"
    texts = [one["candidates"][0]["content"]["parts"][0]["text"] for one in reply.json()]
    assert "".join(texts) == "abcd"


async def test_closed_stream_aborts_the_call(server: InterceptionServer) -> None:
    turns: list[Turn] = []
    recorded = anyio.Event()

    def keep(turn: Turn) -> None:
        turns.append(turn)
        recorded.set()

    engine = Typist("ab", letters=1)
    async with server.session(engine, who(), keep) as gate, by_hand(server, gate) as http:
        url = f"/{MODEL}:streamGenerateContent?alt=sse"
        with anyio.fail_after(60):
            async with http.stream("POST", url, json=HI) as response:
                await anext(response.aiter_lines())
            await recorded.wait()
    assert engine.aborted == 1
    assert turns[0].error == GONE


async def test_spent_budget_ends_the_agent_with_a_text(server: InterceptionServer) -> None:
    from google.genai.errors import ClientError

    engine = Script(say("one").message)
    async with server.session(engine, who(), list[Turn]().append, Budgets(turns=1)) as gate:
        async with sdk(server, gate).aio as client:
            ask = partial(client.models.generate_content, model=MODEL)
            assert (await ask(contents="a")).text == "one"
            for number in range(8):
                spent = await ask(contents=f"b{number}")
                assert (spent.text, spent.candidates[0].finish_reason) == (SPENT, "STOP")
            with pytest.raises(ClientError, match="FAILED_PRECONDITION") as caught:
                await ask(contents="c")
    assert caught.value.code == 410


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"contents": [{"parts": [{"inline_data": {"data": b"x", "mime_type": "image/png"}}]}]},
            r"contents\[0\].parts\[0\].inlineData is not supported here",
        ),
        ({"contents": "a", "config": {"cached_content": "c"}}, "'cachedContent' is not supported here"),
        ({"contents": "a", "config": {"candidate_count": 2}}, "this endpoint gives one candidate"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_sdk_shows_why_a_request_is_refused(
    server: InterceptionServer, fields: dict[str, Any], sentence: str, streamed: bool
) -> None:
    from google.genai.errors import ClientError

    async def ask(client: AsyncClient) -> None:
        if streamed:
            [chunk async for chunk in await client.models.generate_content_stream(model=MODEL, **fields)]
        else:
            await client.models.generate_content(model=MODEL, **fields)

    async with server.session(Script(), who(), list[Turn]().append) as gate, sdk(server, gate).aio as client:
        with pytest.raises(ClientError, match=sentence) as caught:
            await ask(client)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    assert gate.refusals == 1


async def test_prompt_too_long_is_refused_in_the_words_of_the_api(server: InterceptionServer) -> None:
    from google.genai.errors import ClientError

    engine = Script(ContextOverflow(9, 8), say("short").message)
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate).aio as client:
        said = r"input token count \(9\) exceeds the maximum number of tokens allowed \(8\)"
        with pytest.raises(ClientError, match=said):
            await client.models.generate_content(model=MODEL, contents="long")
        assert (await client.models.generate_content(model=MODEL, contents="a")).text == "short"


async def test_failure_in_a_stream_is_an_error_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status 200 is sent with the first piece."""
    from google.genai.errors import ClientError, ServerError

    engine = fails_after_a_piece(monkeypatch)
    async with InterceptionServer() as server, server.session(engine, who(), list[Turn]().append) as gate:
        async with sdk(server, gate).aio as client:
            pieces = await client.models.generate_content_stream(model=MODEL, contents="hi")
            assert (await anext(aiter(pieces))).text == "half"
            with pytest.raises((ClientError, ServerError), match=ENGINE_FAILED):
                await anext(aiter(pieces))


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "{}"}, {"Authorization": "Basic {}"}])
async def test_key_in_a_wrong_header_is_refused_with_the_right_one(
    server: InterceptionServer, headers: dict[str, str]
) -> None:
    async with server.session(Script(), who(), list[Turn]().append) as gate, httpx.AsyncClient() as client:
        url = f"{root(server, gate)}/v1beta/models/{MODEL}:generateContent"
        offered = {name: value.format(gate.token) for name, value in headers.items()}
        reply = await client.post(url, headers=offered, json={})
        said = "the request has no key in x-goog-api-key: send the rollout's token there"
        assert reply.status_code == 401
        assert reply.json() == {"error": {"code": 401, "message": said, "status": "UNAUTHENTICATED"}}


async def test_wrong_key_is_refused(server: InterceptionServer) -> None:
    from google.genai.errors import ClientError

    async with server.session(Script(), who(), list[Turn]().append) as gate:
        async with sdk(server, gate, key="wrong").aio as client:
            with pytest.raises(ClientError, match="no such rollout, or not its token") as caught:
                await client.models.generate_content(model=MODEL, contents="hi")
    assert caught.value.status == "UNAUTHENTICATED"


async def test_key_in_the_query_and_a_compressed_body_are_read(server: InterceptionServer) -> None:
    engine = Script(say("ok").message)
    async with server.session(engine, who(), list[Turn]().append) as gate, httpx.AsyncClient() as client:
        url = f"{root(server, gate)}/v1beta/models/{MODEL}:generateContent"
        body = gzip.compress(json.dumps(HI).encode())
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        reply = await client.post(url, params={"key": gate.token}, content=body, headers=headers)
    assert reply.json()["candidates"][0]["content"]["parts"] == [{"text": "ok"}]
    assert engine.requests[0].messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("action", ["embedContent", "batchGenerateContent"])
async def test_other_methods_are_not_served(server: InterceptionServer, action: str) -> None:
    async with server.session(Script(), who(), list[Turn]().append) as gate, by_hand(server, gate) as http:
        reply = await http.post(f"/{MODEL}:{action}", json={})
    assert reply.status_code == 404
    assert reply.json()["error"]["status"] == "NOT_FOUND"
