"""Whole conversations through the server, by the openai SDK over real sockets."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession, Usage
from swe_core.api.records import Turn, requests_of
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.builtin.replay import ReplayConfig
from swe_core.builtin.replay.engine import ReplayEngine
from swe_core.interception import server as server_module
from swe_core.interception.server import InterceptionServer
from swe_testing.provider import ScriptedProvider, call_tool, say

from .helpers import HELLO, TOOLS, Plugin, Typist, by_hand, relay, sdk, stream, who

pytestmark = pytest.mark.anyio

QUEUE = int(Path("/proc/sys/net/core/somaxconn").read_text())
"""Connections not yet accepted that the kernel keeps for one listener."""


async def test_sdk_completes_a_tool_task(server: InterceptionServer) -> None:
    """A small agent calls a tool, reads its result and exits; every request can be read back."""
    script = [call_tool("bash", {"command": "ls"}), say("a.py is there"), call_tool("bash", {}), say("bye")]
    turns: list[Turn] = []
    async with ScriptedProvider(script) as provider, relay(provider) as engine:
        async with server.session(engine, who(), turns.append) as gate:
            async with sdk(server, gate) as client:
                messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
                for stream in (False, False, True, True):
                    if stream:
                        async with client.chat.completions.stream(
                            model="any", messages=messages, tools=TOOLS
                        ) as events:
                            message = (await events.get_final_completion()).choices[0].message
                    else:
                        whole = await client.chat.completions.create(
                            model="any", messages=messages, tools=TOOLS
                        )
                        message = whole.choices[0].message
                        assert whole.usage is not None
                        assert whole.usage.total_tokens > 0
                    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                    for call in message.tool_calls or ():
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": "a.py"})
                assert [model.id async for model in client.models.list()] == ["scripted"]
        assert gate.turns == len(turns) == 4
        assert gate.usage.prompt_tokens == 40
    assert [turn.reply for turn in turns] == [reply.message for reply in script]
    assert [turn.after for turn in turns] == [None, 0, 1, 2]
    assert [turn.kept for turn in turns] == [0, 1, 3, 4]
    assert [turn.index for turn in turns] == [0, 1, 2, 3]
    sent = [{**body, "model": "any"} for body in (seen.body for seen in provider.requests)]
    for there, here in zip(sent, requests_of(turns), strict=True):
        assert there["messages"] == here["messages"]
        assert there["tools"] == here["tools"]


async def test_two_chained_servers_relay_replies(server: InterceptionServer, tmp_path: Any) -> None:
    """The engine `openai` relays to another interception server, which answers from a recording."""
    file = tmp_path / "r.jsonl"
    message = {"role": "assistant", "content": "from the far end, in several pieces"}
    usage = {"prompt_tokens": 7, "completion_tokens": 9}
    line = {"task_id": "far", "replies": [{"message": message, "usage": usage}] * 2}
    file.write_text(json.dumps(line))
    async with InterceptionServer() as far, ReplayEngine(ReplayConfig(file=file)) as replay:
        async with far.session(replay, who("far", "far"), lambda _: None) as far_gate:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FAR_TOKEN", far_gate.token)
                config = OpenAIConfig(url=far.url + far_gate.path, model="replay", api_key_env="FAR_TOKEN")
                engine = OpenAIEngine(config)
            async with engine, server.session(engine, who(), lambda _: None) as gate:
                await engine.check()
                async with sdk(server, gate) as client:
                    text, finish, counted = await stream(client)
                    whole = await client.chat.completions.create(model="any", messages=HELLO)
    assert (text, finish) == (message["content"], "stop")
    assert whole.choices[0].message.content == text
    assert (counted.prompt_tokens, counted.completion_tokens, counted.total_tokens) == (7, 9, 16)
    assert gate.usage == Usage(prompt_tokens=14, completion_tokens=18)


async def test_simultaneous_pieces_are_one_event(
    server: InterceptionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_PACE", 3600.0)
    async with Typist("abcdef") as engine, server.session(engine, who(), list[Turn]().append) as gate:
        async with by_hand(server, gate) as http:
            with anyio.fail_after(60):
                raw = (await http.post("/chat/completions", json={"messages": HELLO, "stream": True})).text
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    said = [event["choices"][0]["delta"].get("content") for event in events]
    assert "".join(filter(None, said)) == "abcdef"
    assert len(events) <= 3  # the first piece, what follows, the reason for the end


async def test_empty_pieces_do_not_suppress_keepalives() -> None:
    """White space, for example, is held back."""
    heard = anyio.Event()

    class Blank(Plugin):
        async def complete(
            self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
        ) -> Completion:
            assert emit is not None
            while not heard.is_set():
                await emit({})
                await anyio.lowlevel.checkpoint()
            return await super().complete(request, session)

    engine = Blank(Completion(message=say("ok").message))
    async with InterceptionServer(keepalive=0.01) as server:
        async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
            with anyio.fail_after(60):
                body = {"messages": HELLO, "stream": True}
                async with http.stream("POST", "/chat/completions", json=body) as response:
                    async for line in response.aiter_lines():
                        if line.startswith(":"):
                            heard.set()
    assert heard.is_set()


async def test_engine_without_streaming_is_streamed_as_one_piece(server: InterceptionServer) -> None:
    message = call_tool("bash", {"command": "ls"}).message
    engine = Plugin(Completion(message=message, finish_reason="tool_calls"))
    async with server.session(engine, who(), lambda _: None) as gate:
        async with sdk(server, gate) as client:
            async with client.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as events:
                final = (await events.get_final_completion()).choices[0]
        async with by_hand(server, gate) as http:
            raw = (await http.post("/chat/completions", json={"messages": HELLO, "stream": True})).text
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.arguments == '{"command": "ls"}'
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    assert [len(chunk["choices"]) for chunk in chunks] == [1, 1]  # no usage chunk: it was not asked for
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert raw.endswith("data: [DONE]\n\n")
    assert engine.ended == ["r1"]


async def test_pieces_arrive_during_generation(server: InterceptionServer) -> None:
    async with ScriptedProvider([say("first part, and more")], then="hang-in-stream") as provider:
        async with relay(provider) as engine:
            async with server.session(engine, who(), lambda _: None) as gate, sdk(server, gate) as client:
                stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
                with anyio.fail_after(120):
                    chunk = await anext(aiter(stream))
                assert chunk.choices[0].delta.content == "first pa"
                assert not provider.requests[0].finished.is_set()
                await stream.close()


async def test_lone_surrogate_is_replaced(server: InterceptionServer) -> None:
    """JavaScript agents may cut text in the middle of an emoji."""
    turns: list[Turn] = []
    engine = Plugin(Completion(message={"role": "assistant", "content": "ok"}))
    body = rb'{"messages": [{"role": "user", "content": "cut \ud83d"}]}'
    async with server.session(engine, who(), turns.append) as gate, by_hand(server, gate) as http:
        assert (await http.post("/chat/completions", content=body)).status_code == 200
    assert turns[0].messages[0]["content"] == "cut ?"


async def test_concurrent_rollouts_are_isolated(server: InterceptionServer, tmp_path: Any) -> None:
    file = tmp_path / "r.jsonl"
    replies = [[{"role": "assistant", "content": f"task {t} call {c}"} for c in range(3)] for t in range(30)]
    file.write_text(
        "".join(
            json.dumps({"task_id": f"t{t}", "replies": [{"message": m} for m in mine]}) + "\n"
            for t, mine in enumerate(replies)
        )
    )
    heard: dict[int, list[str]] = {}
    recorded: dict[int, list[Turn]] = {t: [] for t in range(30)}

    async def one(number: int) -> None:
        rollout = who(f"r{number}/ ä", f"t{number}")  # an id that needs quoting in a path
        async with server.session(engine, rollout, recorded[number].append) as gate:
            async with sdk(server, gate) as client:
                heard[number] = [(await stream(client, seed=call))[0] for call in range(3)]

    async with ReplayEngine(ReplayConfig(file=file)) as engine:
        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
    for number, mine in enumerate(replies):
        assert heard[number] == [message["content"] for message in mine]
        assert [turn.reply for turn in recorded[number]] == mine


async def test_backlog_holds_a_wave_of_connections(server: InterceptionServer) -> None:
    """Past the backlog the kernel drops connections and, with syncookies, resets some a second later."""
    port = int(server.url.rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(min(400, QUEUE)):
            # Blocking on purpose: the server's loop accepts none of them meanwhile.
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=0.5)))
