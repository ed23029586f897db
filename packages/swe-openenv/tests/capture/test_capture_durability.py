"""A server that was killed: what it captured stays, and open sessions go on."""

from __future__ import annotations

import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from swe_core.errors import UsageError
from swe_openenv.capture import CaptureServer
from swe_testing.vllm import ScriptedVLLM

from .engines import CALL, MODEL, Qwen, ask, bearer, converse, ours, session

pytestmark = pytest.mark.anyio

_COMMAND = "from swe_openenv.capture.command import capture; capture()"


@asynccontextmanager
async def process(engine: ScriptedVLLM, out: Path) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """`swe-core openenv capture` as a process of its own."""
    options = ["--engine-url", engine.url, "--model", MODEL, "--port", "0", "--out", str(out)]
    options += ["--set", "engine.vllm.renderer=qwen3"]
    command = [sys.executable, "-c", _COMMAND, *options]
    async with await anyio.open_process(command, stderr=None) as running:
        assert running.stdout is not None
        said = ""
        with anyio.fail_after(60):
            async for text in TextReceiveStream(running.stdout):
                said += text
                if "\n" in said:
                    break
        url = said.split()[2].rstrip(",")
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield running, client
        if running.returncode is None:
            running.kill()


async def test_killed_server_answers_for_its_sessions_and_goes_on(qwen: Qwen, tmp_path: Path) -> None:
    """Killed in the middle of a third reply, of which the agent has a part."""
    stuck = anyio.Event()

    async def between(sent: int) -> None:
        if len(engine.requests) == 3 and sent >= 4:
            stuck.set()
            await anyio.sleep_forever()

    out = tmp_path / "capture"
    async with qwen.server(CALL, between=between) as engine:
        async with process(engine, out) as (running, client), anyio.create_task_group() as tasks:
            key = await session(client, metadata={"task": "t"}, purpose="train", max_model_calls=4)
            messages = await converse(client, key, 2)

            async def third() -> None:
                with pytest.raises(httpx.RemoteProtocolError):
                    await ask(client, key, messages)

            tasks.start_soon(third)
            await stuck.wait()
            before = (await client.get(f"/sessions/{key}/rollout")).json()
            running.kill()
        engine._between = None
        finished = engine.requests[:2]
        async with process(engine, out) as (_, client):
            after = (await client.get(f"/sessions/{key}/rollout")).json()
            assert after == before
            assert after["trainable"]
            assert after["metadata"] == {"task": "t", "api_type": "openai_chat"}
            (row,) = after["sequences"]
            assert row["input_ids"] == finished[1].prompt + finished[1].sent
            assert sum(row["loss_mask"]) == sum(len(one.sent) for one in finished)
            messages.append(await ask(client, key, messages))
            result = {"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": "x"}
            messages.append(result)
            messages.append(await ask(client, key, messages))
            spent = await ask(client, key, messages)
            assert "budget" in spent["content"]  # 4 calls in all
            entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
            deleted = await client.delete(f"/sessions/{key}")
            assert deleted.json() == {"deleted": True}
        async with ours(engine, out) as client:
            assert (await client.get("/sessions")).json() == {"sessions": []}
    from openenv.core.harness import TrainingTrace

    trace = TrainingTrace.from_entries(entries)
    answered = [*finished, *engine.requests[3:]]
    assert [turn.completion_token_ids for turn in trace.turns] == [one.sent for one in answered]
    assert [turn.prompt_token_ids for turn in trace.turns] == [one.prompt for one in answered]
    assert list((out / "rollouts").iterdir()) == []


async def test_reply_recorded_but_not_sent_is_not_trained_after_a_kill(qwen: Qwen, tmp_path: Path) -> None:
    """The turn is on disk and no delivery is: nobody can say that the agent got the reply."""
    out = tmp_path / "capture"
    async with qwen.server(CALL, "one", "two") as engine:
        async with ours(engine, out) as client:
            key = await session(client, purpose="train")
            messages = await converse(client, key, 1)
            await ask(client, key, messages)
        (delivered,) = (out / "rollouts").glob("*/0/delivered")
        assert delivered.read_text() == "0\n1\n"
        delivered.write_text("0\n1")  # as if the machine died in the middle of the line
        async with ours(engine, out) as client:
            rollout = (await client.get(f"/sessions/{key}/rollout?include_discarded=1")).json()
            entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
    assert [turn["discarded"] for turn in rollout["turns"]] == [False, True]
    assert [row["role"] for row in rollout["sequences"]] == ["agent", "discarded"]
    assert set(rollout["sequences"][1]["loss_mask"]) == {0}
    assert [entry["metadata"]["index"] for entry in entries] == [0]


async def test_half_a_line_of_a_killed_server_is_left_out(qwen: Qwen, tmp_path: Path) -> None:
    out = tmp_path / "capture"
    async with qwen.server(CALL) as engine:
        async with ours(engine, out) as client:
            key = await session(client, purpose="train")
            await converse(client, key, 2)
        (turns,) = (out / "rollouts").glob("*/0/turns.jsonl")
        turns.write_bytes(turns.read_bytes()[:-20])
        async with ours(engine, out) as client:
            assert (await client.get(f"/sessions/{key}")).json()["n_turns"] == 1
            await ask(client, key)
            assert (await client.get(f"/sessions/{key}/rollout")).json()["stats"]["n_turns"] == 2


async def test_session_made_again_keeps_its_calls_and_takes_new_options(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, session_id="s-1", metadata={"a": 1}, max_model_calls=9)
        await ask(client, key)
        again = {"session_id": key, "metadata": {"b": 2}, "sampling": {"temperature": 0.5}}
        made = (await client.post("/sessions", json={**again, "max_model_calls": 2})).json()
        assert made["max_model_calls"] == 2
        await ask(client, key)
        assert "budget" in (await ask(client, key))["content"]
        rollout = (await client.get(f"/sessions/{key}/rollout")).json()
    assert [one.body["temperature"] for one in engine.requests] == [1.0, 0.5]
    assert rollout["stats"]["n_turns"] == 2
    assert rollout["metadata"].items() >= {"a": 1, "b": 2}.items()


async def test_files_are_the_servers_alone(qwen: Qwen, tmp_path: Path, monkeypatch: Any) -> None:
    """Only this user may read them, and no key of the engine or of the admin is in them."""
    secret, admin = "sk-engine-0123456789", "admin-0123456789"
    monkeypatch.setenv("VLLM_API_KEY", secret)
    out = tmp_path / "capture"
    async with qwen.server("hi", key=secret) as engine, ours(engine, out, admin_key=admin) as client:
        made = await client.post("/sessions", json={"session_id": "../up"}, headers=bearer(admin))
        await ask(client, made.json()["session_id"])
        (folder,) = (out / "rollouts").iterdir()
        with pytest.raises(UsageError, match="in use by another process"):
            async with ours(engine, out):
                pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "session.json").stat().st_mode) == 0o600
    assert made.json()["session_id"] not in folder.name
    for file in out.rglob("*"):
        if file.is_file():
            content = file.read_text()
            assert secret not in content
            assert admin not in content


def test_capture_server_starts_and_stops_in_a_thread(tmp_path: Path) -> None:
    out = tmp_path / "capture"
    for _ in range(2):
        server = CaptureServer(llm_url="", model="", port=0, out=out)
        server.start()
        try:
            assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
            made = httpx.post(f"{server.url}/sessions", json={})
            assert made.status_code == 400
            assert "no inference engine for this session" in made.json()["error"]["message"]
        finally:
            server.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
