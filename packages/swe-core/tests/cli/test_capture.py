"""`swe-core capture` as its users run it: agents of their own with real SDKs, in front of a scripted vLLM."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from anyio.streams.text import TextReceiveStream

from swe_core.api.limits import Budgets
from swe_core.builtin.vllm import VLLMConfig
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.run.capture import Sessions, opened
from swe_core.system.redaction import Redactor
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer
from swe_testing.vllm import ScriptedVLLM, logprob_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


HELLO: Any = [{"role": "user", "content": "hello"}]
ADMIN = {"Authorization": "Bearer admin-0123456789"}


@dataclass
class Qwen:
    """A tokenizer, and scripted servers of its model."""

    path: Path
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def server(self, *replies: Any, **more: Any) -> ScriptedVLLM:
        stop = self.encode("<|im_end|>")[0]
        return ScriptedVLLM(replies, encode=self.encode, stop_id=stop, root=str(self.path), **more)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Qwen:
    path = tmp_path_factory.mktemp("qwen")
    made = make_tokenizer(QWEN3_TOKENS, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.save_pretrained(path)
    return Qwen(path, made.backend_tokenizer)


@asynccontextmanager
async def captured(served: ScriptedVLLM, out: Path, key: Any = None) -> AsyncIterator[tuple[Sessions, str]]:
    """A capture in this process, and its URL."""
    from swe_core.builtin.vllm.engine import VLLMEngine

    async with VLLMEngine(VLLMConfig(url=(served.url,), model="scripted", renderer="qwen3")) as engine:
        await engine.check()
        with opened(out, Redactor()) as directory:
            sessions = Sessions(directory, engine, Budgets(), key)
            async with sessions.served() as url:
                yield sessions, url


async def new_key(client: httpx.AsyncClient, name: str) -> str:
    answer = await client.post("/sessions", json={"name": name})
    assert answer.status_code == 200, answer.text
    key: str = answer.json()["key"]
    return key


def told(sessions: Sessions) -> dict[str, Any]:
    """What the command prints at its end, by name."""
    return {one["name"]: one for one in map(json.loads, sessions.rest())}


def check_exact(document: dict[str, Any], requests: Sequence[Any]) -> None:
    """One row, of exactly what the engine got and gave."""
    (chain,) = document["chains"]
    sampled = [token for one in requests for token in one.sent]
    assert document["turns"] == len(requests)
    assert chain["input_ids"] == requests[-1].prompt + requests[-1].sent
    mask = chain["completion_mask"]
    assert [token for token, own in zip(chain["input_ids"], mask, strict=True) if own] == sampled
    logprobs = [value for value, own in zip(chain["old_log_probs"], mask, strict=True) if own]
    assert logprobs == [logprob_of(token) for token in sampled]
    assert document["ledger"]["sampled"] == document["ledger"]["trainable"] == len(sampled)


async def test_sdks_get_exact_tokens_with_two_keys_at_once(qwen: Qwen, tmp_path: Path) -> None:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI, AuthenticationError

    both = anyio.Event()

    async def between(sent: int) -> None:
        if len(engine.requests) >= 2:
            both.set()
        if engine.requests:  # else it is a probe
            await both.wait()

    async with (
        qwen.server("hi there", between=between) as engine,
        captured(engine, tmp_path / "c", "admin-0123456789") as (sessions, url),
        httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=60) as client,
    ):
        keys = {name: await new_key(client, name) for name in ("chat", "messages")}
        assert await new_key(client, "chat") == keys["chat"]  # a request that was sent again

        async def chat() -> None:
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key=keys["chat"]) as sdk:
                said = ""
                stream = await sdk.chat.completions.create(model="any", messages=HELLO, stream=True)
                async for chunk in stream:
                    said += chunk.choices[0].delta.content or "" if chunk.choices else ""
                assert said == "hi there"
                more = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
                whole = await sdk.chat.completions.create(model="any", messages=more)
                assert whole.choices[0].message.content == "hi there"

        async def messages() -> None:
            async with AsyncAnthropic(base_url=url, api_key=keys["messages"]) as sdk:
                reply = await sdk.messages.create(model="any", messages=HELLO, max_tokens=50)
                assert getattr(reply.content[0], "text", None) == "hi there"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chat)
            tasks.start_soon(messages)
        first = (await client.delete("/sessions/chat")).json()
        assert (await client.delete("/sessions/chat")).json() == first
        for key in ("sk-wrong", keys["chat"]):  # that of no session, and of one that has ended
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as sdk:
                with pytest.raises(AuthenticationError, match="no open session has this key"):
                    await sdk.chat.completions.create(model="any", messages=HELLO)
    rest = told(sessions)
    assert rest.keys() == {"messages"}
    of_messages = [one for one in engine.requests if one.body["max_tokens"] == 50]
    check_exact(rest["messages"], of_messages)
    check_exact(first, [one for one in engine.requests if one not in of_messages])
    assert (len(of_messages), len(engine.requests)) == (1, 3)
    for file in (tmp_path / "c").rglob("*"):
        if file.is_file():
            assert not any(key in file.read_text() for key in (*keys.values(), "admin-0123456789"))


async def test_requests_of_sessions_that_are_wrong(qwen: Qwen, tmp_path: Path) -> None:
    stranger = {"Authorization": "Bearer x"}
    async with (
        qwen.server("hi") as engine,
        captured(engine, tmp_path / "c", "admin-0123456789") as (_, url),
        httpx.AsyncClient(base_url=url, headers=ADMIN) as client,
    ):
        for name in ("", "../up", "x" * 129, 7):
            await refused(client, 400, "expected {", "POST", "/sessions", json={"name": name})
        await refused(client, 400, "expected {", "POST", "/sessions", json=[])
        await refused(client, 404, "there is no session 'other'", "DELETE", "/sessions/other")
        await new_key(client, "a")
        for method, path in (("POST", "/sessions"), ("DELETE", "/sessions/a")):
            await refused(client, 401, "needs the key", method, path, json={"name": "b"}, headers=stranger)
        empty = (await client.delete("/sessions/a")).json()
        assert (empty["turns"], empty["chains"], empty["ledger"]["sampled"]) == (0, [], 0)
        await refused(client, 409, "the session 'a' has ended", "POST", "/sessions", json={"name": "a"})
        with pytest.raises(UsageError, match="in use by another process"), opened(tmp_path / "c", Redactor()):
            pass


async def refused(client: httpx.AsyncClient, status: int, says: str, *asked: str, **more: Any) -> None:
    answer = await client.request(*asked, **more)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]


async def test_kill_loses_nothing_that_was_answered(qwen: Qwen, tmp_path: Path) -> None:
    """The directory as it is in the middle of the second reply: what a killed process leaves."""
    stuck = anyio.Event()

    async def between(sent: int) -> None:
        if len(engine.requests) == 2 and not stuck.is_set():
            stuck.set()
            await anyio.sleep_forever()

    left = tmp_path / "left"
    async with qwen.server("one two three four", between=between) as engine:
        async with (
            captured(engine, tmp_path / "c") as (_, url),
            httpx.AsyncClient(base_url=url, timeout=60) as client,
            anyio.create_task_group() as tasks,
        ):
            client.headers["x-api-key"] = await new_key(client, "a")
            path, body = "/v1/chat/completions", {"model": "any", "messages": HELLO}
            assert (await client.post(path, json=body)).status_code == 200
            tasks.start_soon(partial(client.post, path, json={**body, "messages": HELLO * 2}))
            await stuck.wait()
            shutil.copytree(tmp_path / "c", left)
            tasks.cancel_scope.cancel()
        (left / "rollouts" / "damaged").mkdir()
        (left / "rollouts" / "damaged" / "turns.jsonl").write_text("{}\n")
        async with captured(engine, left) as (sessions, url), httpx.AsyncClient(base_url=url) as client:
            await refused(client, 500, "is not a recorded call", "DELETE", "/sessions/damaged")
        rest = told(sessions)
    check_exact(rest["a"], engine.requests[:1])
    assert "is not a recorded call" in rest["damaged"]["error"]


@pytest.mark.slow
async def test_command_prints_what_it_has_on_ctrl_c(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine:
        command = ["capture", "--engine-url", engine.url, "--model", "scripted", "--port", "0"]
        command += ["--out", str(tmp_path / "c"), "--set", "engine.vllm.renderer=qwen3"]
        start = [sys.executable, "-c", "from swe_core.cli import main; main()", *command]
        async with await anyio.open_process(start) as running:
            assert running.stderr is not None
            assert running.stdout is not None
            said = ""
            async for text in TextReceiveStream(running.stderr):
                said += text
                if "records in" in said:
                    break
            url = said.split("capture: ")[1].partition(",")[0]
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                client.headers["x-api-key"] = await new_key(client, "a")
                asked = {"model": "any", "messages": HELLO}
                assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
            running.send_signal(signal.SIGINT)
            printed = "".join([piece async for piece in TextReceiveStream(running.stdout)])
            assert await running.wait() == 0
    check_exact(json.loads(printed), engine.requests)


def test_directory_of_a_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", new_run_info({}, {"run": {}}, 1, ()), Redactor())
    before = sorted(tmp_path.rglob("*"))
    refusal = pytest.raises(UsageError, match="is a run's and no capture directory: give another with --out")
    with refusal, opened(tmp_path / "run", Redactor()):
        pass
    assert sorted(tmp_path.rglob("*")) == before
