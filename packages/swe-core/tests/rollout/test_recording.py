"""Recordings: written from any engine, read strictly, and answered from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from openai import AsyncOpenAI

from swe_core.api.engine import ChatRequest, Engine, EngineSession
from swe_core.api.records import Turn
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.builtin.replay import ReplayConfig
from swe_core.builtin.replay.engine import ReplayEngine
from swe_core.errors import ConfigError, EngineError, EngineRefused
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.recording import RecordingEngine, read_recording
from swe_core.system.redaction import Redactor
from swe_testing.provider import ScriptedProvider, call_tool, say

MESSAGES = [{"role": "user", "content": "hi"}]
REQUEST = ChatRequest({"messages": MESSAGES}, MESSAGES)


def _who(task: str = "t", attempt: int = 0, agent: str = "pi", rollout: str = "r") -> EngineSession:
    return EngineSession(rollout, task, attempt, agent)


def _line(*texts: str, **more: Any) -> dict[str, Any]:
    replies = [{"message": {"role": "assistant", "content": text}} for text in texts]
    return {"task_id": "t", "replies": replies, **more}


def _replay(folder: Path, *lines: Any) -> ReplayEngine:
    """A replay of these lines; `in.jsonl` in the folder has them."""
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ReplayEngine(ReplayConfig(file=folder / "in.jsonl"))


async def _converse(server: InterceptionServer, engine: Engine, who: EngineSession, calls: int) -> list[Turn]:
    """Ask `calls` times with the real SDK, every other time streaming."""
    turns: list[Turn] = []
    async with server.session(engine, who, turns.append) as gate:
        async with AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client:
            for number in range(calls):
                messages: list[Any] = [{"role": "user", "content": "go"}] * (number + 1)
                if number % 2:
                    async for _ in await client.chat.completions.create(
                        model="any", messages=messages, stream=True
                    ):
                        pass
                else:
                    await client.chat.completions.create(model="any", messages=messages)
    return turns


async def test_recording_replays_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = tmp_path / "recording.jsonl"
    replies = [
        call_tool("bash", {"command": "ls -la", "unicode": "ä\u2028ö"}),
        say("thinking aloud", reasoning_content="hmm"),
        say("done"),
    ]
    async with InterceptionServer() as server:
        async with ScriptedProvider(replies) as provider:
            config = OpenAIConfig(url=provider.url, model="scripted")
            async with RecordingEngine(OpenAIEngine(config), file, Redactor()) as engine:
                recorded = await _converse(server, engine, _who(), 3)
                await _converse(server, engine, _who(task="other", rollout="r2"), 1)
        async with ReplayEngine(ReplayConfig(file=file)) as engine:
            replayed = await _converse(server, engine, _who(rollout="again"), 3)
    assert [turn.reply for turn in recorded] == [dict(reply.message) for reply in replies]
    for then, now in zip(recorded, replayed, strict=True):
        assert (now.reply, now.finish_reason, now.usage) == (then.reply, then.finish_reason, then.usage)
    lines = [(line.task_id, line.attempt, line.agent) for line in read_recording(file)]
    assert lines == [("t", 0, "pi"), ("other", 0, "pi")]


async def test_replies_are_recorded_in_order_of_the_calls(tmp_path: Path) -> None:
    """The first call is answered last; its reply is still the first one."""
    file = tmp_path / "recording.jsonl"
    slow_is_asked, fast_is_done = anyio.Event(), anyio.Event()
    inner = _replay(tmp_path, _line("first", "second"))
    async with RecordingEngine(inner, file, Redactor()) as engine:

        async def slow_emit(_: object) -> None:
            slow_is_asked.set()
            await fast_is_done.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(engine.complete, REQUEST, _who(), slow_emit)
            await slow_is_asked.wait()
            await engine.complete(REQUEST, _who())
            fast_is_done.set()
        await engine.end(_who())
    (line,) = read_recording(file)
    assert [reply.message["content"] for reply in line.replies] == ["first", "second"]


async def test_failed_calls_are_not_recorded(tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    inner = _replay(tmp_path, _line("hi"))
    async with RecordingEngine(inner, file, Redactor()) as engine:
        await engine.complete(REQUEST, _who())
        with pytest.raises(EngineError):
            await engine.complete(REQUEST, _who())
        await engine.end(_who())
        await engine.end(_who(task="never asked", rollout="r2"))
    (line,) = read_recording(file)
    assert len(line.replies) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_recording_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    inner = _replay(tmp_path, _line("hi"))
    with pytest.raises(ConfigError, match=r"nowhere.*cannot be written.*name a file"):
        await RecordingEngine(inner, tmp_path / "nowhere" / "r.jsonl", Redactor()).__aenter__()
    async with RecordingEngine(inner, Path("/dev/full"), Redactor()) as engine:
        await engine.complete(REQUEST, _who())
        with pytest.raises(EngineError, match=r"'/dev/full' could not be written"):
            await engine.end(_who())


async def test_most_specific_line_is_replayed(tmp_path: Path) -> None:
    lines = (
        _line("both", attempt=1, agent="pi"),
        _line("any"),
        _line("any, newer", note="hand-written"),
        _line("agent", agent="pi"),
        _line("attempt", attempt=1),
        {**_line("other task"), "task_id": "u"},
    )
    for attempt, agent, expected in (
        (1, "pi", "both"),
        (1, "mini", "attempt"),
        (0, "pi", "agent"),
        (0, "mini", "any, newer"),
    ):
        engine = _replay(tmp_path, *lines)
        completion = await engine.complete(REQUEST, _who(attempt=attempt, agent=agent))
        assert (completion.message["content"], completion.model) == (expected, "replay")
    assert "no model was called" in engine.notes()[0]
    assert "hand-written" in engine.notes()


async def test_replayed_stream_comes_in_pieces(tmp_path: Path) -> None:
    text = "word " * 30
    engine = _replay(tmp_path, _line(text))
    emit = AsyncMock()
    await engine.complete(REQUEST, _who(), emit)
    pieces = [asked.args[0].get("content", "") for asked in emit.await_args_list]
    assert "".join(pieces) == text
    assert len(pieces) > 3


async def test_replay_sessions_are_separate_and_forgotten_at_their_end(tmp_path: Path) -> None:
    """An auxiliary call uses up no reply."""
    engine = _replay(tmp_path, _line("first", "second"))
    title = ChatRequest({"messages": MESSAGES}, MESSAGES, auxiliary="title")
    assert (await engine.complete(title, _who(rollout="a"))).message["content"] == "title"

    async def ask(rollout: str) -> Any:
        return (await engine.complete(REQUEST, _who(rollout=rollout))).message["content"]

    assert [await ask("a"), await ask("b"), await ask("a")] == ["first", "first", "second"]
    await engine.end(_who(rollout="a"))
    assert await ask("a") == "first"


async def test_replay_without_a_reply_is_an_error(tmp_path: Path) -> None:
    engine = _replay(tmp_path, _line("hi"))
    with pytest.raises(EngineRefused, match=r"in\.jsonl' has no replies for the task 'u' .*--record"):
        await engine.complete(REQUEST, _who(task="u"))
    await engine.complete(REQUEST, _who())
    with pytest.raises(EngineRefused, match=r"in\.jsonl' has no more replies for the task 't'.*more calls"):
        await engine.complete(REQUEST, _who())


def test_missing_recording_is_an_error_and_an_invalid_line_is_named(tmp_path: Path) -> None:
    for missing in (None, Path("/nowhere/r.jsonl"), Path("/")):
        with pytest.raises(ConfigError, match=r"pass --recording FILE|cannot be read .*name an existing"):
            ReplayEngine(ReplayConfig(file=missing))
    for line, problem in (
        ("{not json", "Invalid JSON"),
        ('{"task_id": 7, "replies": []}', "task_id: .*string"),
        ('{"task_id": "t", "replies": [], "atempt": 1}', "atempt: Extra"),
        ('{"task_id": "t", "replies": [{"message": {"role": "user"}}]}', "role is 'assistant'"),
    ):
        file = tmp_path / "r.jsonl"
        file.write_text(json.dumps(_line("hi")) + "\n\n" + line + "\n")
        with pytest.raises(ConfigError, match=rf"line 3 of the recording '.*r\.jsonl' .*({problem})"):
            ReplayEngine(ReplayConfig(file=file))


async def test_replayed_shell_command_calls_the_shell_tool_of_the_agent(tmp_path: Path) -> None:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    call = {"id": "c", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    line = _line(replies=[{"message": message, "finish_reason": "tool_calls"}] * 2)
    engine = _replay(tmp_path, line)
    parameters = {"type": "object", "properties": {"cmd": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "exec_command", "parameters": parameters}}]
    answered = await engine.complete(ChatRequest({"messages": MESSAGES}, MESSAGES, tools), _who())
    called = answered.message["tool_calls"][0]["function"]
    assert called == {"name": "exec_command", "arguments": '{"cmd":"ls"}'}
    assert (await engine.complete(REQUEST, _who())).message == message
