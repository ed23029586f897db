"""Exact tokens, real streams and delivery: what our capture server does beyond the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
import pytest

from swe_testing.provider import ScriptedProvider, say
from swe_testing.vllm import logprob_of

from .engines import CALL, HELLO, MODEL, Qwen, ask, converse, ours, session

pytestmark = pytest.mark.anyio


async def test_prompts_are_ids_and_none_is_rendered_twice(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server(CALL) as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, purpose="train")
        await converse(client, key, 5)
        entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
        rollout = (await client.get(f"/sessions/{key}/rollout")).json()
    assert engine.chats == []
    for before, after in pairwise(engine.requests):
        known = before.prompt + before.sent
        assert after.prompt[: len(known)] == known
        assert len(after.prompt) > len(known)
    assert [entry["prompt_token_ids"] for entry in entries] == [one.prompt for one in engine.requests]
    assert [entry["completion_token_ids"] for entry in entries] == [one.sent for one in engine.requests]
    for entry in entries:
        assert entry["per_token_logps"] == [logprob_of(token) for token in entry["completion_token_ids"]]
    (row,) = rollout["sequences"]
    last = engine.requests[-1]
    assert row["input_ids"] == last.prompt + last.sent
    assert row["turn_lengths"] == [len(one.sent) for one in engine.requests]
    assert row["validation"] == []


async def test_a_stream_begins_before_the_engine_has_finished(qwen: Qwen, tmp_path: Path) -> None:
    seen = anyio.Event()

    async def between(sent: int) -> None:
        if sent >= 8 and engine.requests:  # else it is a probe
            await seen.wait()

    async with qwen.server("one two three four five six seven eight", between=between) as engine:
        async with ours(engine, tmp_path / "c") as client:
            key = await session(client)
            text = ""
            async with openai_sdk(client, key) as sdk:
                with anyio.fail_after(20):
                    async for chunk in await sdk.chat.completions.create(
                        model="any", messages=HELLO, stream=True
                    ):
                        text += chunk.choices[0].delta.content or ""
                        if text and not seen.is_set():
                            assert not engine.requests[0].finished.is_set()
                            seen.set()
            assert text == "one two three four five six seven eight"
            assert (await client.get(f"/sessions/{key}")).json()["n_turns"] == 1


@asynccontextmanager
async def openai_sdk(client: httpx.AsyncClient, key: str) -> AsyncIterator[Any]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{client.base_url}/v1".replace("//v1", "/v1"), api_key=key) as sdk:
        yield sdk


@asynccontextmanager
async def anthropic_sdk(client: httpx.AsyncClient, key: str) -> AsyncIterator[Any]:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(base_url=str(client.base_url), api_key=key) as sdk:
        yield sdk


async def test_sdks_talk_to_a_session_by_their_key_alone(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi there") as engine, ours(engine, tmp_path / "c") as client:
        keys = {name: await session(client, session_id=name) for name in ("chat", "responses", "messages")}
        async with openai_sdk(client, keys["chat"]) as sdk:
            whole = await sdk.chat.completions.create(model="any", messages=HELLO)
            assert whole.choices[0].message.content == "hi there"
            async with sdk.chat.completions.stream(model="any", messages=HELLO) as events:
                assert (await events.get_final_completion()).choices[0].message.content == "hi there"
            assert [model.id async for model in sdk.models.list()] == [MODEL]
        async with openai_sdk(client, keys["responses"]) as sdk:
            assert (await sdk.responses.create(model="any", input="hello")).output_text == "hi there"
            async with sdk.responses.stream(model="any", input="hello") as events:
                assert (await events.get_final_response()).output_text == "hi there"
        async with anthropic_sdk(client, keys["messages"]) as sdk:
            asked: Any = {"model": "any", "messages": HELLO, "max_tokens": 50}
            assert (await sdk.messages.create(**asked)).content[0].text == "hi there"
            async with sdk.messages.stream(**asked) as events:
                assert (await events.get_final_message()).content[0].text == "hi there"
            assert (await sdk.messages.count_tokens(model="any", messages=HELLO)).input_tokens > 3
        listed = {one["session_id"]: one for one in (await client.get("/sessions")).json()["sessions"]}
    assert {name: one["turns"] for name, one in listed.items()} == dict.fromkeys(keys, 2)
    assert {name: one["api_type"] for name, one in listed.items()} == {
        "chat": "openai_chat",
        "responses": "openai_responses",
        "messages": "anthropic",
    }


async def test_sdk_shows_an_unknown_key_in_its_own_words(qwen: Qwen, tmp_path: Path) -> None:
    from anthropic import AuthenticationError as AnthropicError
    from openai import AuthenticationError

    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        async with openai_sdk(client, "sk-wrong") as sdk:
            with pytest.raises(AuthenticationError, match="no open session has this key") as refused:
                await sdk.chat.completions.create(model="any", messages=HELLO)
        assert "sk-wrong" not in str(refused.value)
        async with anthropic_sdk(client, "sk-wrong") as sdk:
            with pytest.raises(AnthropicError, match="no open session has this key"):
                await sdk.messages.create(model="any", messages=HELLO, max_tokens=5)


async def test_budget_ends_an_agent_in_its_dialect(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server(CALL) as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, max_model_calls=2)
        messages = await converse(client, key, 3)
        assert "budget" in messages[-1]["content"]
        google = {"contents": [{"role": "user", "parts": [{"text": "go on"}]}]}
        answer = await client.post(
            "/v1beta/models/any:streamGenerateContent?alt=sse", json=google, headers={"x-goog-api-key": key}
        )
        assert "budget" in answer.text
        rollout = (await client.get(f"/sessions/{key}/rollout")).json()
    assert len(engine.requests) == rollout["stats"]["n_turns"] == 2
    assert rollout["budget_stop_count"] == 2


async def test_call_that_the_agent_left_is_no_turn_and_no_error(qwen: Qwen, tmp_path: Path) -> None:
    """Its tokens are on disk as aborted; it is not the engine's failure, and nothing of it is trained."""

    async def between(sent: int) -> None:
        if len(engine.requests) == 1:
            await anyio.sleep_forever()

    async with qwen.server("one two three four five six", CALL, "done", between=between) as engine:
        async with ours(engine, tmp_path / "c") as client:
            key = await session(client, purpose="train")
            async with openai_sdk(client, key) as sdk:
                async with await sdk.chat.completions.create(
                    model="any", messages=HELLO, stream=True
                ) as left:
                    await anext(aiter(left))
            await engine.requests[0].finished.wait()
            await converse(client, key, 2)
            status = (await client.get(f"/sessions/{key}")).json()
            entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
            rollout = (await client.get(f"/sessions/{key}/rollout?include_discarded=1")).json()
    assert engine.requests[0].disconnected
    assert (status["n_turns"], status["upstream_errors"]) == (2, 0)
    assert [entry["completion_token_ids"] for entry in entries] == [one.sent for one in engine.requests[1:]]
    assert [turn["n_sampled"] for turn in rollout["turns"]] == [len(one.sent) for one in engine.requests[1:]]


async def test_text_engine_gives_an_evaluation(tmp_path: Path) -> None:
    """An engine that is no vLLM: level "text", the conversation linked by its messages."""
    async with ScriptedProvider([say("one"), say("two"), say("three")]) as provider:
        async with ours(None, tmp_path / "c") as client:
            url = provider.url.removesuffix("/v1")
            refused = await client.post(
                "/sessions", json={"llm_url": url, "model": MODEL, "purpose": "train"}
            )
            assert refused.status_code == 400
            assert refused.json()["error"]["message"].startswith(
                "training requires exact engine token capture: "
            )
            sampled = await client.post(
                "/sessions", json={"llm_url": url, "model": MODEL, "sampling": {"temperature": 1.0}}
            )
            assert sampled.status_code == 400
            body = {"llm_url": url, "model": MODEL, "purpose": "eval", "eval_sampling": {"temperature": 0.5}}
            made = (await client.post("/sessions", json=body)).json()
            assert (made["capture_level"], made["rollout_type"]) == ("text", "eval")
            key = made["session_id"]
            messages = [{"role": "system", "content": "now 1"}, *HELLO]
            for number in range(3):
                messages[0] = {"role": "system", "content": f"now {number}"}  # which some agents do
                reply = await ask(client, key, messages)
                messages += [{**reply, "content": [{"type": "text", "text": f"{reply['content']} "}]}]
                messages += [{"role": "user", "content": "more"}]
            rollout = (await client.get(f"/sessions/{key}/rollout?include_messages=1")).json()
            assert (await client.get(f"/sessions/{key}/trace_entries")).status_code == 409
    assert [seen.body["temperature"] for seen in provider.requests] == [0.5] * 3
    (row,) = rollout["sequences"]
    assert (row["role"], row["n_turns"], row["input_ids"], row["trainable"]) == ("agent", 3, [], False)
    assert [turn["response_message"]["content"] for turn in rollout["turns"]] == ["one", "two", "three"]
    assert not any("[FATAL]" in finding for finding in rollout["validation"])


@pytest.mark.parametrize("fault", ["no-logprobs", "null-logprobs"])
async def test_tokens_without_logprobs_are_never_trained(qwen: Qwen, tmp_path: Path, fault: Any) -> None:
    settings = ("engine.vllm.renderer=qwen3", "engine.vllm.max_missing_logprobs=1")
    async with qwen.server(CALL, "done", faults=["ok", fault]) as engine:
        async with ours(engine, tmp_path / "c", sets=settings) as client:
            key = await session(client, purpose="train")
            await converse(client, key, 2)
            entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
            rollout = (await client.get(f"/sessions/{key}/rollout")).json()
    assert [entry["metadata"]["index"] for entry in entries] == [0]
    (row,) = rollout["sequences"]
    assert sum(row["loss_mask"]) == len(engine.requests[0].sent)
    assert row["input_ids"][-len(engine.requests[1].sent) :] == engine.requests[1].sent
    assert any("no_logprobs" in finding for finding in rollout["validation"])


async def _rewritten(qwen: Qwen, out: Path, change: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """The trace entries of two calls, after `change` of the second one's record on disk."""
    async with qwen.server(CALL, "done") as engine:
        async with ours(engine, out) as client:
            key = await session(client, purpose="train")
            await converse(client, key, 2)
        (file,) = (out / "rollouts").glob("*/0/turns.jsonl")
        first, second = file.read_bytes().splitlines()
        turn = orjson.loads(second)
        change(turn)
        file.write_bytes(b"".join(line + b"\n" for line in (first, orjson.dumps(turn))))
        async with ours(engine, out) as client:
            answer = await client.get(f"/sessions/{key}/trace_entries")
            assert answer.status_code == 200, answer.text
            entries: list[dict[str, Any]] = answer.json()["entries"]
            return entries


async def test_logprob_above_0_is_not_trained(qwen: Qwen, tmp_path: Path) -> None:
    """Rounding gives some engines one, and OpenEnv refuses the whole trace for it."""
    from openenv.core.harness import TrainingTrace

    def change(turn: dict[str, Any]) -> None:
        turn["tokens"]["logprobs"][0] = 0.25

    entries = await _rewritten(qwen, tmp_path / "c", change)
    sampled = len(entries[1]["completion_token_ids"])
    trace = TrainingTrace.from_entries(entries)
    assert trace.turns[1].loss_mask[-sampled:] == [0, *[1] * (sampled - 1)]


async def test_call_without_a_reply_is_not_trained(qwen: Qwen, tmp_path: Path) -> None:
    def change(turn: dict[str, Any]) -> None:
        turn["reply"] = None
        turn["error"] = "failed"

    entries = await _rewritten(qwen, tmp_path / "c", change)
    assert [entry["metadata"]["index"] for entry in entries] == [0]


async def test_fork_trains_each_sampled_id_once(qwen: Qwen, tmp_path: Path) -> None:
    """Two continuations of one call: the ids before the fork are targets of one row alone."""
    from openenv.core.harness import TrainingTrace

    async with qwen.server(CALL, CALL, CALL, "left", "right") as engine:
        async with ours(engine, tmp_path / "c") as client:
            key = await session(client, purpose="train")
            messages = await converse(client, key, 1)
            branches = [[*messages[:-1], {**messages[-1], "content": name}] for name in ("left", "right")]
            for branch in branches:
                reply = await ask(client, key, branch)
                result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "x"}
                branch += [reply, result]
            for branch in branches:
                await ask(client, key, branch)
            rollout = (await client.get(f"/sessions/{key}/rollout")).json()
            entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
    sampled = sum(len(one.sent) for one in engine.requests)
    assert rollout["stats"]["n_trainable_tokens"] == sampled
    assert rollout["stats"]["n_forks"] == 1
    assert [row["n_turns"] for row in rollout["sequences"]] == [3, 3]
    assert [row["trainable"] for row in rollout["sequences"]] == [True, True]
    trace = TrainingTrace.from_entries(entries)
    assert [turn.metadata["index"] for turn in trace.turns] == [0, 1, 3, 2, 4]
    assert sum(sum(turn.loss_mask) for turn in trace.turns) == sampled


async def test_sampling_belongs_to_the_session(qwen: Qwen, tmp_path: Path) -> None:
    """The engine is asked with the session's temperature, whatever the agent wants, which is recorded."""
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        for temperature in (0.7, 1.3):
            key = await session(client, sampling={"temperature": temperature}, purpose="train")
            await ask(client, key, temperature=0.1, top_p=0.5, max_tokens=100_000)
            document = (await client.get(f"/sessions/{key}/rollout")).json()
            (turn,) = document["turns"]
            assert turn["sampling_params"]["temperature"] == temperature
            assert turn["requested_sampling_params"] == {"temperature": 0.1, "top_p": 0.5}
            assert document["metadata"]["sampling_overridden"] == {"top_p": 0.5}
            assert any("sampling_neutralised" in finding for finding in document["validation"])
        capped = await session(client, metadata={"max_output_tokens": 7})
        await ask(client, capped)
    bodies = [one.body for one in engine.requests]
    assert [body["temperature"] for body in bodies] == [0.7, 1.3, 1.0]
    assert [body["top_p"] for body in bodies] == [1.0] * 3
    assert [body["max_tokens"] for body in bodies] == [8192, 8192, 7]
    assert len(engine.probes) == 4 * 3  # as many as engines: the server's, one each for the sessions


async def test_64_sessions_at_once_keep_their_tokens_apart(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server(CALL) as engine, ours(engine, tmp_path / "c") as client:
        done: dict[int, list[dict[str, Any]]] = {}

        async def play(number: int) -> None:
            key = await session(client, session_id=f"agent-{number}", purpose="train")
            messages = [{"role": "user", "content": f"you are number {number}"}]
            for _ in range(2):
                reply = await ask(client, key, messages)
                result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "x"}
                messages += [reply, result]
            done[number] = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]

        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(play, number)
        probes = len(engine.probes)
    assert probes == 3
    for number, entries in done.items():
        assert [entry["request"]["messages"][0]["content"] for entry in entries] == [
            f"you are number {number}"
        ] * 2
        assert (
            entries[1]["prompt_token_ids"][: len(entries[0]["prompt_token_ids"])]
            == (entries[0]["prompt_token_ids"])
        )
        assert f"number {number}" in qwen.renderer.text(entries[0]["prompt_token_ids"])
