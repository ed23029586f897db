"""A server that was killed: what it captured stays, and open sessions go on."""

from __future__ import annotations

import resource
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from swe_core.errors import UsageError
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_openenv.capture import CaptureServer
from swe_openenv.capture.server import capture
from swe_testing.vllm import ScriptedVLLM

from .engines import CALL, HELLO, MODEL, Qwen, ask, bearer, converse, options_of, ours, session

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


async def test_directory_of_a_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = RunDirectory.create(out, new_run_info({}, {"run": {"tasks": "t"}}, 1, ()), Redactor())
    folder = run.folder("task-1")
    folder.put("patch.diff", b"valuable")
    folder.close()
    with pytest.raises(UsageError, match="is a run's and no capture directory: give another with --out"):
        async with ours(None, out):
            pass
    assert (out / "rollouts" / "task-1" / "patch.diff").read_bytes() == b"valuable"


async def test_run_does_not_resume_a_capture_directory(qwen: Qwen, tmp_path: Path) -> None:
    """It would remove all folders without a finished rollout."""
    out = tmp_path / "capture"
    async with qwen.server("hi") as engine:
        async with ours(engine, out) as client:
            await ask(client, await session(client))
    command = [sys.executable, "-c", "from swe_core.cli import main; main()", "run", "--resume", str(out)]
    ended = await anyio.run_process(command, check=False)
    assert ended.returncode == 2
    assert b"capture" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert len(list((out / "rollouts").glob("*/0/turns.jsonl"))) == 1


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a call": lambda folder: (folder / "0" / "turns.jsonl").write_text("{}\n"),
    "calls that are a folder": lambda folder: _as_folder(folder / "0" / "turns.jsonl"),
    "a delivery": lambda folder: (folder / "0" / "delivered").write_text("x\n0\n"),
    "no record of a part": lambda folder: (folder / "0" / "part.json").unlink(),
    "the record": lambda folder: (folder / "session.json").write_bytes(b"\xff{"),
    "no record": lambda folder: (folder / "session.json").unlink(),
    "a record that is a folder": lambda folder: _as_folder(folder / "session.json"),
    "the record of another": lambda folder: shutil.copy(
        next(one for one in folder.parent.iterdir() if one != folder) / "session.json", folder
    ),
}


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", DAMAGES)
async def test_damaged_session_stays_closed_and_others_go_on(
    qwen: Qwen, tmp_path: Path, name: str, caplog: Any
) -> None:
    out = tmp_path / "capture"
    async with qwen.server("hi") as engine:
        async with ours(engine, out) as client:
            damaged = await session(client)
            await ask(client, damaged)
            (folder,) = (out / "rollouts").iterdir()
            whole = await session(client)
            await ask(client, whole)
        DAMAGES[name](folder)
        before = sorted(folder.rglob("*"))
        (out / "rollouts" / ".DS_Store").write_text("of a file manager")
        (out / "rollouts" / "notes").mkdir()
        async with ours(engine, out) as client:
            listed = (await client.get("/sessions")).json()["sessions"]
            assert [(one["session_id"], one["turns"]) for one in listed] == [(whole, 1)]
            await ask(client, whole, [*HELLO, *HELLO])
            refused = await client.post("/sessions", json={"session_id": damaged})
            assert refused.status_code == 409
            assert "files of this session are damaged" in refused.json()["error"]["message"]
            assert (await client.get(f"/sessions/{damaged}/rollout")).status_code == 404
            assert (await client.delete(f"/sessions/{damaged}")).json() == {"deleted": False}
    assert sorted(folder.rglob("*")) == before
    said = [one.getMessage() for one in caplog.records if "stays closed" in one.getMessage()]
    assert len(said) == 1
    assert str(folder) in said[0]
    assert (out / "rollouts" / ".DS_Store").exists()


async def test_session_that_was_never_made_whole_can_be_made(qwen: Qwen, tmp_path: Path, caplog: Any) -> None:
    """Killed before its record was written: nothing is damaged."""
    out = tmp_path / "capture"
    async with qwen.server("hi") as engine:
        async with ours(engine, out) as client:
            key = await session(client)
        (folder,) = (out / "rollouts").iterdir()
        (folder / "session.json").rename(folder / "session.json.new")
        async with ours(engine, out) as client:
            await ask(client, await session(client, session_id=key))
    assert "stays closed" not in caplog.text


async def test_agents_see_no_answer_of_a_server_that_ends(qwen: Qwen, tmp_path: Path) -> None:
    """SDKs retry a broken connection; 401 and 410 would end the agent."""
    stuck = anyio.Event()

    async def between(sent: int) -> None:
        if engine.requests and not stuck.is_set():
            stuck.set()
            await anyio.sleep_forever()

    out = tmp_path / "capture"
    async with qwen.server(CALL, between=between) as engine, anyio.create_task_group() as tasks:
        async with capture(options_of(engine, out)) as url:
            client = httpx.AsyncClient(base_url=url, timeout=60)
            key = await session(client)

            async def call() -> None:
                for _ in range(3):  # as SDKs do
                    with pytest.raises(httpx.TransportError):
                        await ask(client, key)
                await client.aclose()

            tasks.start_soon(call)
            await stuck.wait()
    async with qwen.server(CALL) as engine, ours(engine, out) as client:
        status = (await client.get(f"/sessions/{key}")).json()
        assert (status["n_turns"], status["upstream_errors"]) == (0, 0)


async def test_request_after_the_end_has_begun_is_broken_off() -> None:
    """It came on a connection that was accepted, and not yet known, when the others were broken."""
    async with InterceptionServer() as server, httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/healthz")).status_code == 200
        server.hang_up()
        for _ in range(2):
            with pytest.raises(httpx.TransportError):
                await client.get(f"{server.url}/healthz")


async def test_server_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    try:
        async with ours(None, tmp_path / "c"):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


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
