"""The Responses API through the server, by the openai SDK over real sockets and by clients that err."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import anyio
import httpx
import pytest
from pydantic import BaseModel

from swe_core.api.deltas import cut
from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession, Usage
from swe_core.api.limits import Budgets
from swe_core.api.messages import message_key
from swe_core.api.records import Turn
from swe_core.errors import ContextOverflow, EngineUnavailable
from swe_core.interception.gate import GONE, SPENT, Gate
from swe_core.interception.server import UNREADABLE, InterceptionServer
from swe_core.rollout.recording import RecordedReply
from swe_testing.provider import ScriptedProvider, call_tool, say
from swe_testing.waiting import until

from .helpers import Plugin, Typist, by_hand, relay, sdk, who

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.anyio

TOOLS: list[Any] = [
    {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: hunk+"},
    },
    {"type": "web_search"},
]
PATCH = '*** Begin Patch\n*** Add File: a.py\n+print("ä")\n*** End Patch\n'
SCRIPT = [
    RecordedReply(
        message={
            **call_tool("bash", {"command": "ls"}).message,
            "content": "let me see",
            "reasoning_content": "hm",
        },
        finish_reason="tool_calls",
        usage=Usage(prompt_tokens=3, completion_tokens=4),
    ),
    call_tool("apply_patch", {"input": PATCH}, "call_2"),
    call_tool("apply_patch", {"patch": PATCH}, "call_3"),
    say("done", reasoning_content="all good"),
]


def _results(output: Sequence[Any]) -> list[Any]:
    """What an agent answers to the calls of a response."""
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    calls = [item for item in output if item.type in kinds]
    return [{"type": kinds[call.type], "call_id": call.call_id, "output": "a.py"} for call in calls]


async def _agent(client: Any, *, streamed: bool, stored: bool) -> list[Any]:
    """Work like an agent until a reply calls no tool, and return the responses."""
    items: list[Any] = [{"role": "user", "content": "look"}]
    more: dict[str, Any] = {"model": "any", "tools": TOOLS, "instructions": "You are an agent."}
    if not stored:
        more |= {"store": False, "include": ["reasoning.encrypted_content"]}
    responses: list[Any] = []
    while True:
        if streamed:
            async with client.responses.stream(input=items, **more) as events:
                async for _ in events:
                    pass
                response = await events.get_final_response()
        else:
            response = await client.responses.create(input=items, **more)
        responses.append(response)
        results = _results(response.output)
        if not results:
            return responses
        if stored:
            items, more["previous_response_id"] = results, response.id
        else:
            items += [*response.output, *results]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_sdk_completes_a_tool_task(server: InterceptionServer, streamed: bool, stored: bool) -> None:
    """Each request continues the reply before it, whatever the model gave a custom tool as input."""
    turns: list[Turn] = []
    async with ScriptedProvider(SCRIPT) as provider, relay(provider) as engine:
        async with server.session(engine, who(), turns.append) as gate, sdk(server, gate) as client:
            responses = await _agent(client, streamed=streamed, stored=stored)
    assert gate.refusals == 0
    assert [turn.dialect for turn in turns] == ["responses"] * 4
    assert [turn.after for turn in turns] == [None, 0, 1, 2]
    requests = [seen.body for seen in provider.requests]
    for before, after, reply in zip(requests, requests[1:], SCRIPT, strict=False):
        said = {**reply.message, "content": reply.message["content"] or ""}
        continued = after["messages"][: len(before["messages"]) + 1]
        assert [*map(message_key, continued)] == [*map(message_key, before["messages"]), message_key(said)]
    assert requests[0]["messages"][0] == {"role": "system", "content": "You are an agent."}
    assert requests[1]["messages"][2]["reasoning_content"] == "hm"
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == ["bash", "apply_patch"]
    first, patch, wrong, last = responses
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert first.output[2].arguments == '{"command": "ls"}'
    assert (patch.output[0].type, patch.output[0].input) == ("custom_tool_call", PATCH)
    assert wrong.output[0].input == json.dumps({"patch": PATCH})
    assert (last.output_text, last.status, last.model) == ("done", "completed", "scripted")
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (3, 4, 7)


async def test_sdk_gets_the_events_of_a_stream(server: InterceptionServer) -> None:
    async with ScriptedProvider(SCRIPT[:1]) as provider, relay(provider) as engine:
        async with server.session(engine, who(), lambda _: None) as gate, sdk(server, gate) as client:
            async with client.responses.stream(model="m", input="hi", tools=TOOLS) as stream:
                events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert [kind for at, kind in enumerate(kinds) if kind != kinds[at - 1]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


class Person(BaseModel):
    name: str


async def test_sdk_parses_a_format(server: InterceptionServer) -> None:
    async with ScriptedProvider([say('{"name": "Ada"}')]) as provider, relay(provider) as engine:
        async with server.session(engine, who(), lambda _: None) as gate, sdk(server, gate) as client:
            response = await client.responses.parse(model="m", input="who", text_format=Person)
    assert response.output_parsed == Person(name="Ada")
    assert provider.requests[0].body["response_format"]["json_schema"]["name"] == "Person"


async def test_sdk_counts_the_tokens_of_an_input(server: InterceptionServer) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, sdk(server, gate) as client:
        counted = await client.responses.input_tokens.count(model="m", input="x" * 4000)
    assert 1000 <= counted.input_tokens < 1100
    assert gate.turns == 0


async def test_piece_arrives_when_it_is_sampled(server: InterceptionServer) -> None:
    engine = Typist(letters=1)
    async with server.session(engine, who(), lambda _: None) as gate, sdk(server, gate) as client:
        stream = await client.responses.create(model="m", input="hi", stream=True)
        with anyio.fail_after(60):
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
        assert event.type == "response.output_text.delta"
        assert event.delta == "a"
        engine.let(5)
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
    assert text == "bcdef"


class Caller(Typist):
    """Streams a call of a custom tool, letter by letter."""

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        async def as_arguments(delta: Mapping[str, Any]) -> None:
            assert emit is not None
            function = {"name": "apply_patch", "arguments": delta["content"]}
            await emit({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})

        completion = await super().complete(request, session, as_arguments)
        text = completion.message["content"]
        call = {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": text}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return Completion(message, "tool_calls", completion.usage, sampled=completion.sampled)


async def test_client_may_leave_in_the_middle_of_a_call(server: InterceptionServer) -> None:
    engine, turns = Caller('{"input": "abc"}', letters=13), list[Turn]()
    async with server.session(engine, who(), turns.append) as gate, sdk(server, gate) as client:
        asked: dict[str, Any] = {"model": "m", "input": "hi", "tools": TOOLS}
        stream = await client.responses.create(stream=True, **asked)
        with anyio.fail_after(60):
            async for event in stream:
                if event.type == "response.custom_tool_call_input.delta":
                    break
        assert event.type == "response.custom_tool_call_input.delta"
        await stream.close()
        await until(lambda: bool(turns))
        engine.let(100)
        async with client.responses.stream(**asked) as again:
            (call,) = (await again.get_final_response()).output
        ledger = gate.ledger()
    assert call.type == "custom_tool_call"
    assert call.input == "abc"
    assert [turn.error for turn in turns] == [GONE, None]
    assert ledger is not None
    assert ledger.dropped == {"aborted": 13}
    assert ledger.trainable == len('{"input": "abc"}')


async def test_failing_engine_is_an_error_of_the_sdk(server: InterceptionServer, openai: ModuleType) -> None:
    class Breaking(Plugin):
        async def complete(
            self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
        ) -> Completion:
            for delta in cut(SCRIPT[0].message, 4) if emit else ():
                await emit(delta)  # type: ignore[misc]  # None has no pieces
            return await super().complete(request, session)

    for rollout, error, wanted in (
        ("broken", EngineUnavailable("it broke"), "the model behind this endpoint failed for good"),
        ("long", ContextOverflow(9, 8), "maximum context length is 8"),
    ):
        engine = Breaking(error)
        async with server.session(engine, who(rollout), lambda _: None) as gate, sdk(server, gate) as client:
            with pytest.raises(openai.APIError, match=wanted):
                async for _ in await client.responses.create(model="m", input="hi", stream=True):
                    pass
            with pytest.raises(openai.APIStatusError, match=wanted) as raised:
                await client.responses.create(model="m", input="hi")
    assert (raised.value.status_code, raised.value.code) == (400, "context_length_exceeded")


async def test_spent_budget_ends_with_a_text(server: InterceptionServer) -> None:
    async with server.session(Typist(), who(), lambda _: None, Budgets(turns=1)) as gate:
        async with sdk(server, gate) as client:
            for said in ("abcdef", SPENT):
                async with client.responses.stream(model="m", input="hi") as stream:
                    response = await stream.get_final_response()
                assert (response.output_text, response.status) == (said, "completed")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"previous_response_id": "resp_1"}, "Previous response with id 'resp_1' not found."),
        ({"tools": [{"type": "apply_patch"}]}, "the type 'apply_patch'"),
        ({"background": True}, "'background' is not supported here"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "'input_image'; this endpoint's model reads text only",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "Item with id 'msg_1' not found"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_unsupported_request_is_a_400_of_the_sdk(
    server: InterceptionServer, openai: ModuleType, asked: dict[str, Any], sentence: str, stream: bool
) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, sdk(server, gate) as client:
        with pytest.raises(openai.BadRequestError, match=sentence) as raised:
            await client.responses.create(model="m", stream=stream, **{"input": "hi", **asked})
    assert (raised.value.code == "previous_response_not_found") == ("previous_response_id" in asked)
    assert (gate.turns, gate.refusals) == (0, 1)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
async def test_compressed_body_is_read(server: InterceptionServer, encoding: str, compress: Any) -> None:
    engine = Typist()
    async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
        raw = compress(json.dumps({"input": "x" * 100_000}).encode())
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        good = await http.post("/responses", content=raw, headers=headers)
        bad = await http.post("/responses", content=b"x" + raw, headers=headers)
    assert (good.status_code, good.json()["output"][0]["content"][0]["text"]) == (200, "abcdef")
    assert len(engine.asked[0].messages[0]["content"]) == 100_000
    assert (bad.status_code, bad.json()["error"]["message"]) == (400, UNREADABLE)


async def _raw(server: InterceptionServer, gate: Gate, head: str, stream: bool) -> AsyncIterator[bytes]:
    """Send a request in two parts, the body after the first answer to `head`, if `head` expects one."""
    body = json.dumps({"input": "hi", "stream": stream}).encode()
    lines = [
        f"POST {gate.path}/responses {head}",
        f"Authorization: Bearer {gate.token}",
        f"Content-Length: {len(body)}",
    ]
    port = int(server.url.rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as connection:
        await connection.send("\r\n".join([*lines, "", ""]).encode())
        if "Expect" in head:
            yield await connection.receive()
        await connection.send(body)
        yield b"".join([piece async for piece in connection])


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_client_is_answered(server: InterceptionServer, stream: bool) -> None:
    """Such a client knows no chunks: the end of the connection ends a stream."""
    async with server.session(Typist(), who(), lambda _: None) as gate:
        with anyio.fail_after(60):
            (reply,) = [piece async for piece in _raw(server, gate, "HTTP/1.0", stream)]
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK")
    assert b"chunked" not in head
    if stream:
        data = body.removesuffix(b"\n\n").rpartition(b"data: ")[2]
        assert json.loads(data)["type"] == "response.completed"
    else:
        assert json.loads(body)["status"] == "completed"


async def test_client_that_expects_100_continue_gets_it(server: InterceptionServer) -> None:
    head = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue"
    async with server.session(Typist(), who(), lambda _: None) as gate:
        with anyio.fail_after(60):
            first, reply = [piece async for piece in _raw(server, gate, head, stream=False)]
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert reply.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("header", ["x-api-key", "x-goog-api-key", "api-key"])
async def test_key_in_a_wrong_header_is_a_401_that_names_the_right_one(
    server: InterceptionServer, header: str
) -> None:
    async with server.session(Typist(), who(), lambda _: None) as gate, httpx.AsyncClient() as http:
        reply = await http.post(
            f"{server.url}{gate.path}/responses", json={"input": "hi"}, headers={header: gate.token}
        )
    assert reply.status_code == 401
    error = reply.json()["error"]
    assert error["type"] == "authentication_error"
    assert "no key in Authorization: Bearer: send the rollout's token there" in error["message"]


async def test_retry_of_a_stored_response_is_not_sampled_again(server: InterceptionServer) -> None:
    engine = Typist()
    async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
        first = (await http.post("/responses", json={"input": "hi"})).json()
        body = {"input": "more", "previous_response_id": first["id"]}
        for retries in ("0", "1"):
            headers = {"x-stainless-retry-count": retries}
            reply = (await http.post("/responses", json=body, headers=headers)).json()
            again = {"input": "and", "previous_response_id": reply["id"]}
            assert (await http.post("/responses", json=again)).status_code == 200
    texts = [[message["content"] for message in request.messages] for request in engine.asked]
    assert texts[1] == ["hi", "abcdef", "more"]
    assert texts[2] == texts[3] == ["hi", "abcdef", "more", "abcdef", "and"]
    assert len(engine.asked) == 4
