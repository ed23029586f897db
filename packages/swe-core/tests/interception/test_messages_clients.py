"""Conversations in the Messages API through the server, by Anthropic's SDK over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from swe_core.api.limits import Budgets
from swe_core.api.messages import Message, message_key
from swe_core.api.records import Turn
from swe_core.interception.gate import SPENT, Gate
from swe_core.interception.server import ENGINE_FAILED, InterceptionServer
from swe_core.interception.sse import EventStream
from swe_testing.provider import call_tool, say

from .helpers import Script, Typist, fails_after_a_piece, root, who

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
SIGNED: Any = {"type": "adaptive", "display": "omitted"}
IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}


def sdk(server: InterceptionServer, gate: Gate, key: str | None = None, **options: Any) -> AsyncAnthropic:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=root(server, gate), api_key=key or gate.token, **options)


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
@pytest.mark.parametrize("thinking", [None, SIGNED])
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


# The first is cut at the limit of tokens.
@pytest.mark.parametrize("arguments", ['{"command": "ls", "n": 1', '{"command": "ls"} and more'])
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


async def test_sdk_shows_why_a_request_is_refused(server: InterceptionServer) -> None:
    from anthropic import BadRequestError

    messages = [{"role": "user", "content": [IMAGE]}]
    async with server.session(Script(), who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        for streamed in (False, True):
            with pytest.raises(BadRequestError, match=r"messages\.0\.content\.0\.image: this endpoint's"):
                await ask(client, streamed=streamed, messages=messages)
    assert gate.refusals == 2


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


async def test_models_are_listed(server: InterceptionServer) -> None:
    async with server.session(Script(), who(), list[Turn]().append) as gate, sdk(server, gate) as client:
        assert [model.id async for model in client.models.list()] == ["plugin"]
