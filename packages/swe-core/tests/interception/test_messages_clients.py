"""Conversations in the Messages API through the server, by Anthropic's SDK over real sockets."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession
from swe_core.api.limits import Budgets
from swe_core.api.messages import Message, message_key
from swe_core.api.records import Turn
from swe_core.errors import ContextOverflow, EngineUnavailable
from swe_core.interception.gate import GONE, SPENT, Gate
from swe_core.interception.server import ENGINE_FAILED, InterceptionServer
from swe_core.interception.sse import EventStream
from swe_testing.provider import call_tool, say

from .helpers import Plugin, Script, Typist, fails_after_a_piece, root, who

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message as Reply

pytestmark = pytest.mark.anyio

HI: list[Any] = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "max_tokens": 50, "messages": HI}
BASH: Any = {
    "name": "bash",
    "description": "Run it.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
SHOWN: Any = {"type": "enabled", "budget_tokens": 1024}
SIGNED: Any = {"type": "adaptive", "display": "omitted"}
IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}


def sdk(server: InterceptionServer, gate: Gate, key: str | None = None, **options: Any) -> AsyncAnthropic:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=root(server, gate), api_key=key or gate.token, **options)


@asynccontextmanager
async def by_hand(server: InterceptionServer, gate: Gate) -> AsyncIterator[httpx.AsyncClient]:
    base = server.url + gate.path
    async with httpx.AsyncClient(base_url=base, headers={"x-api-key": gate.token}, timeout=60) as client:
        yield client


async def ask(client: AsyncAnthropic, *, streamed: bool, **options: Any) -> Reply:
    fields: dict[str, Any] = {**BODY, **options}
    if not streamed:
        whole: Reply = await client.messages.create(**fields)
        return whole
    async with client.messages.stream(**fields) as stream:
        return await stream.get_final_message()


def calls(*arguments: str, reasoning: str = "") -> Message:
    """Return a reply that calls the tool `bash` once for each of `arguments`."""
    made = [call_tool("bash", {}, f"c{number}").message["tool_calls"][0] for number in range(len(arguments))]
    for call, text in zip(made, arguments, strict=True):
        call["function"]["arguments"] = text
    thought = {"reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", **thought, "content": "I look.", "tool_calls": made}


def results(reply: Reply) -> dict[str, Any]:
    """Return the user's message with a result of each call."""
    used = [block.id for block in reply.content if block.type == "tool_use"]
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": id, "content": f"of {number}"}
            for number, id in enumerate(used)
        ],
    }


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thinking", [None, SHOWN, SIGNED])
async def test_sdk_completes_a_tool_task(server: InterceptionServer, streamed: bool, thinking: Any) -> None:
    turns: list[Turn] = []
    said = [
        calls('{"command": "ls", "n": 1.0}', "", reasoning="hm"),
        calls('{"n": 2, "command": "cat"}', reasoning="hm, hm"),
        say("bye").message,
    ]
    engine = Script(*said)
    messages: list[Any] = [*HI]
    options: dict[str, Any] = {"tools": [BASH], "system": "be brief"}
    if thinking:
        options["thinking"] = thinking
    async with server.session(engine, who(), turns.append) as gate, sdk(server, gate) as client:
        for number in range(3):
            reply = await ask(client, streamed=streamed, messages=messages, **options)
            messages.append(reply.to_param())
            if number < 2:
                assert reply.stop_reason == "tool_use"
                messages.append(results(reply))
    assert (reply.stop_reason, reply.usage.input_tokens, reply.usage.output_tokens) == ("end_turn", 7, 9)
    assert reply.content[0].to_dict() == {"type": "text", "text": "bye"}
    assert [turn.dialect for turn in turns] == ["messages"] * 3
    assert [turn.after for turn in turns] == [None, 0, 1]
    assert [turn.reply for turn in turns] == said
    last = engine.requests[2].messages
    assert last[:2] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert [message["tool_calls"] for message in last if message["role"] == "assistant"] == [
        one["tool_calls"] for one in said[:2]
    ]
    assert [message.get("reasoning_content") for message in last if message["role"] == "assistant"] == (
        ["hm", "hm, hm"] if thinking else [None, None]
    )
    assert [message for message in last if message["role"] == "tool"] == [
        {"role": "tool", "content": f"of {number}", "tool_call_id": f"c{number}"} for number in (0, 1, 0)
    ]
    function = {"name": "bash", "description": "Run it.", "parameters": BASH["input_schema"]}
    assert engine.requests[0].tools == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"command": "ls", "n": 1',  # cut at the limit of tokens
        '{"command": "ls", "n": 1, x}',
        '{"command": "ls"} and more',
        '["ls"]',
        "ls",
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_input_that_is_no_object_breaks_nothing(
    server: InterceptionServer, arguments: str, streamed: bool
) -> None:
    """The SDK fails on text that is no JSON, and makes its own object of JSON that is cut."""
    engine = Script(calls(arguments, '{"command": "ls"}'), say("bye").message)
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        reply = await ask(client, streamed=streamed, tools=[BASH])
        assert [block.input for block in reply.content if block.type == "tool_use"][1] == {"command": "ls"}
        history = [*HI, reply.to_param(), results(reply)]
        await ask(client, streamed=streamed, tools=[BASH], messages=history)
    echo = engine.requests[1].messages[1]
    assert message_key(echo) == message_key(calls(arguments, '{"command": "ls"}'))


async def test_beta_client_is_answered(server: InterceptionServer) -> None:
    """It adds a query to the path, and a header."""
    engine = Script(say("ok").message)
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        reply = await client.beta.messages.create(
            model="m",
            max_tokens=5,
            messages=[*HI, {"role": "system", "content": "be brief"}],
            betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )
    assert reply.content[0].to_dict() == {"type": "text", "text": "ok"}
    assert [message["role"] for message in engine.requests[0].messages] == ["user", "system"]
    assert engine.requests[0].max_tokens == 5


@pytest.mark.parametrize("counts", [5, None])
async def test_tokens_of_a_prompt_are_counted(server: InterceptionServer, counts: int | None) -> None:
    turns: list[Turn] = []
    engine = Script(counts=counts)
    async with server.session(engine, who(), turns.append) as gate, sdk(server, gate) as client:
        counted = await client.messages.count_tokens(model="m", messages=HI, system="be brief")
        beta = await client.beta.messages.count_tokens(model="m", messages=HI, tools=[BASH])
    if counts:
        assert counted.input_tokens == beta.input_tokens == counts
    else:  # an estimate
        assert 0 < counted.input_tokens < beta.input_tokens < 100
    assert engine.requests[0].messages[0] == {"role": "system", "content": "be brief"}
    assert turns == []


async def test_token_in_the_header_of_bearers_is_taken(server: InterceptionServer) -> None:
    """Of `auth_token`, and of ANTHROPIC_AUTH_TOKEN."""
    from anthropic import AsyncAnthropic

    engine = Script(say("ok").message)
    async with server.session(engine, who(), list[Turn]().append) as gate:
        async with AsyncAnthropic(base_url=root(server, gate), auth_token=gate.token) as client:
            assert (await ask(client, streamed=False)).stop_reason == "end_turn"


async def test_pieces_arrive_during_generation(server: InterceptionServer) -> None:
    engine = Typist("ab", letters=1)
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        with anyio.fail_after(60):
            async with client.messages.stream(**BODY) as stream:
                texts = aiter(stream.text_stream)
                assert await anext(texts) == "a"
                engine.let(1)
                assert [text async for text in texts] == ["b"]


async def test_pieces_of_an_input_arrive_during_generation(server: InterceptionServer) -> None:
    class Caller(Plugin):
        async def complete(
            self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
        ) -> Completion:
            assert emit is not None
            said = calls('{"command": "ls"}')
            (call,) = said["tool_calls"]
            for text in ('{"command": ', '"l'):
                function = {"name": "bash", "arguments": text}
                await emit({"tool_calls": [{"index": 0, "id": call["id"], "function": function}]})
            await heard.wait()
            await emit({"tool_calls": [{"index": 0, "function": {"arguments": 's"}'}}]})
            return Completion(said, "tool_calls")

    heard = anyio.Event()
    async with server.session(Caller(Completion({})), who(), list[Turn]().append) as gate:
        async with sdk(server, gate) as client, client.messages.stream(**BODY) as stream:
            with anyio.fail_after(60):
                async for event in stream:
                    if event.type == "input_json" and event.partial_json == '"l':
                        heard.set()
                assert (await stream.get_final_message()).content[0].input == {"command": "ls"}


async def test_sdk_ignores_keepalives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first piece, between pieces and before the last event."""
    sent: list[bytes] = []
    engine = Typist("ab", letters=0)
    send = EventStream.send

    async def watched(self: EventStream, data: bytes) -> None:
        await send(self, data)
        sent.append(data)
        if all(b"ping" in one for one in sent[-2:]):
            engine.let(1)

    monkeypatch.setattr(EventStream, "send", watched)
    async with InterceptionServer(keepalive=0.01) as server:
        async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate) as client:
            with anyio.fail_after(60):
                reply = await ask(client, streamed=True)
    assert reply.content[0].to_dict() == {"type": "text", "text": "ab"}
    first = next(index for index, data in enumerate(sent) if b"message_start" in data)
    assert first >= 1
    assert any(b"ping" in data for data in sent[first:])


async def test_stream_closed_in_a_call_aborts_the_generation(server: InterceptionServer) -> None:
    class Caller(Plugin):
        async def complete(
            self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
        ) -> Completion:
            assert emit is not None
            function = {"name": "bash", "arguments": '{"command": "l'}
            await emit({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})
            await anyio.sleep_forever()
            raise AssertionError

    turns: list[Turn] = []
    recorded = anyio.Event()

    def keep(turn: Turn) -> None:
        turns.append(turn)
        recorded.set()

    async with server.session(Caller(Completion({})), who(), keep) as gate, sdk(server, gate) as client:
        with anyio.fail_after(60):
            async with client.messages.stream(**BODY) as stream:
                async for event in stream:
                    if event.type == "input_json":
                        break
            await recorded.wait()
    assert turns[0].error == GONE


async def test_spent_budget_ends_the_agent_with_a_text(server: InterceptionServer) -> None:
    from anthropic import APIStatusError

    engine = Script(say("one").message)
    async with server.session(engine, who(), list[Turn]().append, Budgets(turns=1)) as gate:
        async with sdk(server, gate) as client:
            await ask(client, streamed=False)
            for number in range(8):
                spent = await ask(client, streamed=number % 2 == 0, system=f"call {number}")
                assert [block.to_dict() for block in spent.content] == [{"type": "text", "text": SPENT}]
                assert spent.stop_reason == "end_turn"
            with pytest.raises(APIStatusError, match="invalid_request_error") as caught:
                await ask(client, streamed=False, system="one more")
    assert caught.value.status_code == 410


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.image: this endpoint's"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type is 'bash_20250124'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "x;"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_sdk_shows_why_a_request_is_refused(
    server: InterceptionServer, fields: dict[str, Any], sentence: str, streamed: bool
) -> None:
    from anthropic import BadRequestError

    async with server.session(Script(), who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        with pytest.raises(BadRequestError, match=sentence):
            await ask(client, streamed=streamed, **fields)
    assert gate.refusals == 1


async def test_prompt_too_long_is_refused_in_the_words_of_the_api(server: InterceptionServer) -> None:
    from anthropic import BadRequestError

    engine = Script(ContextOverflow(9, 8), say("short").message)
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        with pytest.raises(BadRequestError) as caught:
            await ask(client, streamed=True)
        assert caught.value.body["error"]["message"] == "prompt is too long: 9 tokens > 8 maximum"
        assert (await ask(client, streamed=True)).stop_reason == "end_turn"


async def test_failure_in_a_stream_is_an_error_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status 200 is sent with the first piece."""
    from anthropic import APIStatusError

    engine = fails_after_a_piece(monkeypatch)
    async with InterceptionServer() as server, server.session(engine, who(), list[Turn]().append) as gate:
        async with sdk(server, gate) as client, client.messages.stream(**BODY) as stream:
            texts = aiter(stream.text_stream)
            assert await anext(texts) == "half"
            with pytest.raises(APIStatusError, match=ENGINE_FAILED) as caught:
                await anext(texts)
    assert caught.value.body["error"]["type"] == "api_error"


async def test_failure_before_the_stream_is_not_tried_again(server: InterceptionServer) -> None:
    from anthropic import APIStatusError

    engine = Script(EngineUnavailable("it is down"))
    async with server.session(engine, who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        with pytest.raises(APIStatusError, match=ENGINE_FAILED):
            await ask(client, streamed=True)
    assert len(engine.requests) == 1


@pytest.mark.parametrize("headers", [{}, {"x-goog-api-key": "{}"}, {"Authorization": "Basic {}"}])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_key_in_a_wrong_header_is_refused_with_the_right_one(
    server: InterceptionServer, headers: dict[str, str], path: str
) -> None:
    async with server.session(Script(), who(), list[Turn]().append) as gate, httpx.AsyncClient() as client:
        offered = {name: value.format(gate.token) for name, value in headers.items()}
        reply = await client.post(root(server, gate) + path, headers=offered, json=BODY)
    assert reply.status_code == 401
    said = "the request has no key in x-api-key: send the rollout's token there"
    assert reply.json() == {"type": "error", "error": {"type": "authentication_error", "message": said}}


async def test_wrong_key_is_refused(server: InterceptionServer) -> None:
    from anthropic import AuthenticationError

    async with server.session(Script(), who(), list[Turn]().append) as gate:
        async with sdk(server, gate, key="wrong") as client:
            with pytest.raises(AuthenticationError, match="no such rollout, or not its token"):
                await ask(client, streamed=False)


async def test_compressed_body_is_read(server: InterceptionServer) -> None:
    engine = Script(say("ok").message)
    async with server.session(engine, who(), list[Turn]().append) as gate, by_hand(server, gate) as client:
        body = gzip.compress(json.dumps(BODY).encode())
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        reply = await client.post("/messages", params={"beta": "true"}, content=body, headers=headers)
    assert reply.json()["content"] == [{"type": "text", "text": "ok"}]
    assert engine.requests[0].messages == HI


async def test_batches_are_not_served(server: InterceptionServer) -> None:
    from anthropic import NotFoundError

    async with server.session(Script(), who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        create = partial(client.messages.batches.create, requests=[{"custom_id": "x", "params": BODY}])
        with pytest.raises(NotFoundError, match="/v1/messages/batches is not served by this endpoint"):
            await create()


async def test_models_are_listed(server: InterceptionServer) -> None:
    async with server.session(Script(), who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        assert [model.id async for model in client.models.list()] == ["plugin"]
