"""One conversation in every dialect, by its own SDK: the same row of tokens, id for id."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from swe_core.api.chain import Chain
from swe_core.api.engine import EngineSession
from swe_core.builtin.vllm import VLLMConfig
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_testing.vllm import tool_call

from .conftest import Scripted

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
SYSTEM, TASK, RESULT = "You fix bugs.", "Fix it.", "one.py"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
TOOL: dict[str, Any] = {"name": "bash", "description": "Run a command.", "parameters": SCHEMA}
THOUGHT = "<think>\nWhere is it?\n</think>\n\n"
REPLIES = [
    f"{THOUGHT}I look.\n{tool_call('bash', command='ls')}",
    f"{tool_call('bash', command='cat one.py')}\n{tool_call('bash', command='git log')}",
    "It is fixed.",
]


async def chat(server: InterceptionServer, gate: Gate, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": TOOL}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    async with AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client:
        for _ in REPLIES:
            asked: Any = {"model": "m", "messages": messages, "tools": tools}
            if stream:
                async with client.chat.completions.stream(**asked) as events:
                    reply: Any = await events.get_final_completion()
            else:
                reply = await client.chat.completions.create(**asked)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}, warnings=False))
            for call in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})


async def responses(server: InterceptionServer, gate: Gate, stream: bool) -> None:
    tools: Any = [{"type": "function", "strict": False, **TOOL}]
    items: list[Any] = [{"role": "user", "content": TASK}]
    async with AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client:
        for _ in REPLIES:
            asked: Any = {
                "model": "m",
                "instructions": SYSTEM,
                "input": items,
                "tools": tools,
                "store": False,
            }
            if stream:
                async with client.responses.stream(**asked) as events:
                    reply: Any = await events.get_final_response()
            else:
                reply = await client.responses.create(**asked)
            items += [item.model_dump(exclude_none=True, warnings=False) for item in reply.output]
            for item in reply.output:
                if item.type == "function_call":
                    answer = {"call_id": item.call_id, "output": RESULT}
                    items.append({"type": "function_call_output", **answer})


async def by_response_id(server: InterceptionServer, gate: Gate, stream: bool) -> None:
    """Responses that the server keeps."""
    tools: Any = [{"type": "function", "strict": False, **TOOL}]
    items: list[Any] = [{"role": "user", "content": TASK}]
    before: dict[str, str] = {}
    async with AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client:
        for _ in REPLIES:
            asked: Any = {"model": "m", "instructions": SYSTEM, "input": items, "tools": tools, **before}
            reply: Any = await client.responses.create(**asked)
            before = {"previous_response_id": reply.id}
            items = [
                {"type": "function_call_output", "call_id": item.call_id, "output": RESULT}
                for item in reply.output
                if item.type == "function_call"
            ]


async def messages(server: InterceptionServer, gate: Gate, stream: bool) -> None:
    described = {"name": TOOL["name"], "description": TOOL["description"]}
    tools: Any = [{**described, "input_schema": SCHEMA}]
    said: list[Any] = [{"role": "user", "content": TASK}]
    url = server.url + gate.path.removesuffix("/v1")
    async with AsyncAnthropic(base_url=url, api_key=gate.token) as client:
        for _ in REPLIES:
            asked: Any = {"model": "m", "max_tokens": 999, "system": SYSTEM, "messages": said, "tools": tools}
            if stream:
                async with client.messages.stream(**asked) as events:
                    reply: Any = await events.get_final_message()
            else:
                reply = await client.messages.create(**asked)
            said.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": RESULT}
                for block in reply.content
                if block.type == "tool_use"
            ]
            said.append({"role": "user", "content": results})


async def google(server: InterceptionServer, gate: Gate, stream: bool) -> None:
    declared = types.FunctionDeclaration(
        name=TOOL["name"], description=TOOL["description"], parameters_json_schema=SCHEMA
    )
    config = types.GenerateContentConfig(
        system_instruction=SYSTEM,
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=TASK)])]
    url = server.url + gate.path.removesuffix("/v1")
    client = genai.Client(api_key=gate.token, http_options=types.HttpOptions(base_url=url)).aio
    for _ in REPLIES:
        asked: Any = {"model": "m", "contents": contents, "config": config}
        if stream:
            events = [event async for event in await client.models.generate_content_stream(**asked)]
        else:
            events = [await client.models.generate_content(**asked)]
        parts = [part for event in events for part in event.candidates[0].content.parts or ()]
        contents.append(types.Content(role="model", parts=parts))
        calls = [part.function_call for part in parts if part.function_call]
        answers = [
            types.FunctionResponse(id=one.id, name=one.name, response={"output": RESULT}) for one in calls
        ]
        results = [types.Part(function_response=answer) for answer in answers]
        contents.append(types.Content(role="user", parts=results))
    await client.aclose()


Client = Callable[[InterceptionServer, Gate, bool], Awaitable[None]]


async def row_of(scripted: Scripted, client: Client, stream: bool) -> tuple[Chain, list[int]]:
    """Return the one row of the conversation, and what was sampled."""
    from swe_core.builtin.vllm.engine import VLLMEngine

    async with scripted(REPLIES) as vllm, InterceptionServer() as server:
        async with VLLMEngine(VLLMConfig(url=vllm.url, model="scripted")) as engine:
            who = EngineSession("r", "t", 0, "a")
            async with server.session(engine, who, lambda turn: None) as gate:
                await client(server, gate, stream)
            (row,), ledger = gate.chains(), gate.ledger()
        assert ledger is not None
        sampled = [id_ for asked in vllm.requests for id_ in asked.sent]
        assert (ledger.sampled, ledger.trainable, ledger.dropped) == (len(sampled), len(sampled), {})
        assert ledger.rendered == {"full": 1, "bridge": 2}
    return row, sampled


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", [responses, by_response_id, messages, google])
async def test_every_dialect_gives_the_row_of_chat_completions(
    scripted: Scripted, client: Client, stream: bool
) -> None:
    expected, _ = await row_of(scripted, chat, stream)
    row, sampled = await row_of(scripted, client, stream)
    assert row.input_ids.tolist() == expected.input_ids.tolist()
    assert row.input_ids[row.completion_mask].tolist() == sampled
    assert row.completion_mask.tolist() == expected.completion_mask.tolist()
    assert json.dumps(row.old_log_probs.tolist()) == json.dumps(expected.old_log_probs.tolist())
