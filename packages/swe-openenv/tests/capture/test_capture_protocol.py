"""The same requests to OpenEnv's capture server and to ours, in front of the same engine: the same answers.

OpenEnv's own tests of the protocol are in none of its packages, so this compares with the program itself.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from .engines import CALL, HELLO, TOOL, Qwen, ask, bearer, converse, ours, session, shape_of, theirs

pytestmark = pytest.mark.anyio

POLICY = {"temperature": 1.0}
DOCUMENTS = ("", "/rollout", "/rollout?include_messages=true&include_discarded=true", "/trace_entries")

Play = Callable[[httpx.AsyncClient, str], Awaitable[object]]


@asynccontextmanager
async def both(
    qwen: Qwen, out: Path, replies: tuple[Any, ...], **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of our server and of OpenEnv's, each with an engine of its own that gives the same replies."""
    async with (
        qwen.server(*replies) as one,
        qwen.server(*replies) as other,
        ours(one, out, **options) as mine,
        theirs(other, **options) as reference,
    ):
        yield mine, reference


async def documents(client: httpx.AsyncClient, play: Play, **body: Any) -> dict[str, Any]:
    """All documents of a session after `play`, without what is random."""
    key = await session(client, **{"session_id": "s-1", "purpose": "train", "sampling": POLICY, **body})
    await play(client, key)
    found = {path: await client.get(f"/sessions/{key}{path}") for path in DOCUMENTS}
    found["list"] = await client.get("/sessions")
    answers = {path: (answer.status_code, answer.json()) for path, answer in found.items()}
    # Prompts hold no ids of calls, so that these may differ.
    plain = re.sub(rb'"(call_\w+)"', b'"call"', orjson.dumps(answers, option=orjson.OPT_SORT_KEYS))
    for number, name in enumerate(dict.fromkeys(re.findall(rb'"node_id":"([^"]+)"', plain))):
        plain = plain.replace(b'"%b"' % name, b'"node-%d"' % number)
    found_plain: dict[str, Any] = orjson.loads(re.sub(rb'"idle_s":[\d.]+', b'"idle_s":0', plain))
    return found_plain


async def test_documents_of_a_conversation_are_theirs_value_by_value(qwen: Qwen, tmp_path: Path) -> None:
    async def play(client: httpx.AsyncClient, key: str) -> None:
        await converse(client, key, 4)

    async with both(qwen, tmp_path / "c", (CALL, CALL, CALL, "done")) as (mine, reference):
        expected = await documents(reference, play, metadata={"task": "t-1"})
        found = await documents(mine, play, metadata={"task": "t-1"})
        assert found == expected
        status, rollout = found["/rollout"]
        assert status == 200
        assert rollout["trainable"]
        assert rollout["stats"]["n_trainable_tokens"] == 3 * len(qwen.encode(CALL + "x")) + 2


async def test_documents_of_a_retried_first_call_are_theirs(qwen: Qwen, tmp_path: Path) -> None:
    """The attempt that the agent threw away is a discarded row of both."""

    async def play(client: httpx.AsyncClient, key: str) -> None:
        await ask(client, key)
        await converse(client, key, 2)

    async with both(qwen, tmp_path / "c", ("thrown away", CALL, "done")) as (mine, reference):
        expected, found = await documents(reference, play), await documents(mine, play)
    (everything,) = [path for path in DOCUMENTS if "include_discarded" in path]
    for path in ("", "/rollout", "/trace_entries", "list"):
        assert found[path] == expected[path]
    rows = {row["role"]: row for row in found[everything][1]["sequences"]}
    of_theirs = {row["role"]: row for row in expected[everything][1]["sequences"]}
    assert rows["agent"] == of_theirs["agent"]
    assert rows["discarded"]["input_ids"] == of_theirs["discarded"]["input_ids"]
    assert set(rows["discarded"]["loss_mask"]) == {0}  # theirs leaves the mask of a row that nobody trains


async def test_documents_of_two_conversations_have_a_title_as_auxiliary(qwen: Qwen, tmp_path: Path) -> None:
    async def play(client: httpx.AsyncClient, key: str) -> None:
        title = [{"role": "user", "content": "a title for: hello"}]
        await ask(client, key, title, tools=None)
        await converse(client, key, 2)

    async with both(qwen, tmp_path / "c", ("a title", CALL, "done")) as (mine, reference):
        expected, found = await documents(reference, play), await documents(mine, play)
    assert found == expected
    assert [row["role"] for row in found["/rollout"][1]["sequences"]] == ["auxiliary", "agent"]
    assert len(found["/trace_entries"][1]["entries"]) == 2


async def test_eval_session_has_the_same_documents(qwen: Qwen, tmp_path: Path) -> None:
    async def play(client: httpx.AsyncClient, key: str) -> None:
        await converse(client, key, 2)

    policy = {"temperature": 0.5}  # theirs undoes another top_p on an engine with tokens
    async with both(
        qwen,
        tmp_path / "c",
        (CALL, "done"),
    ) as (mine, reference):
        body = {"purpose": "eval", "sampling": None, "eval_sampling": policy}
        expected, found = await documents(reference, play, **body), await documents(mine, play, **body)
    assert shape_of(found["/trace_entries"]) == shape_of(expected["/trace_entries"])
    assert found["/trace_entries"][0] == 409
    for path in ("", "list"):
        assert found[path] == expected[path]
    for answer in (found, expected):
        for turn in answer["/rollout"][1]["turns"]:
            assert turn["sampling_params"].items() >= policy.items()
            turn["sampling_params"] = policy
    assert found["/rollout"] == expected["/rollout"]
    assert found["/rollout"][1]["rollout_type"] == "eval"


REFUSED: dict[str, Any] = {
    "metadata is no object": {"metadata": [1]},
    "one reserved key": {"metadata": {"sampling": 1}},
    "reserved keys": {"metadata": {"sampling": 1, "purpose": 1}},
    "negative budget": {"max_model_calls": -1},
    "budget is a string": {"max_model_calls": "3"},
    "budget is true": {"max_model_calls": True},
    "sampling is no object": {"sampling": 1},
    "sampling of a greedy policy": {"sampling": {"temperature": 0}},
    "sampling without a temperature": {"sampling": {}},
    "sampling that cuts": {"sampling": {"temperature": 1.0, "top_k": 5}},
    "unknown sampling": {"sampling": {"temperature": 1.0, "seed": 5}},
    "unknown purpose": {"purpose": "fun"},
    "eval sampling of a training": {"eval_sampling": {"temperature": 1.0}},
    "eval sampling too hot": {"purpose": "eval", "eval_sampling": {"temperature": 3}},
    "eval sampling of something else": {"purpose": "eval", "eval_sampling": {"seed": 3}},
    "training sampling of an evaluation": {"purpose": "eval", "sampling": POLICY},
}


async def test_refused_sessions_get_their_status_and_their_sentence(qwen: Qwen, tmp_path: Path) -> None:
    async with both(qwen, tmp_path / "c", ("hi",)) as (mine, reference):
        for name, body in REFUSED.items():
            expected = await reference.post("/sessions", json=body)
            found = await mine.post("/sessions", json=body)
            assert expected.status_code == 400, name
            assert (found.status_code, found.json()) == (400, expected.json()), name
        assert (await mine.get("/sessions")).json() == {"sessions": []}


async def test_made_sessions_answer_alike(qwen: Qwen, tmp_path: Path) -> None:
    bodies: list[Any] = [
        {"session_id": "given.id_1"},
        {"session_id": "../../etc", "max_model_calls": 3},
        {"session_id": 7, "purpose": "eval"},
        {"metadata": {"a": {"b": 1}}, "purpose": "train", "sampling": {**POLICY, "top_k": -1}},
        {"api_key": None, "auth_header": "Authorization", "provider": "openai"},
        None,
    ]
    async with both(qwen, tmp_path / "c", ("hi",), max_model_calls=9) as (mine, reference):
        for body in bodies:
            answers = []
            for client in (mine, reference):
                made = await client.post("/sessions", json=body) if body else await client.post("/sessions")
                assert made.status_code == 200
                answer = made.json()
                assert re.fullmatch(r"given\.id_1|s[0-9a-f]{24,}", answer.pop("session_id"))
                del answer["llm_url"]
                answers.append(answer)
            assert answers[0] == answers[1]
        health = [(await client.get("/health")).json() for client in (mine, reference)]
        assert health[0].keys() == health[1].keys()
        assert health[0]["sessions"] == health[1]["sessions"] == len(bodies)
        models = [(await client.get("/v1/models")).json() for client in (mine, reference)]
        assert models[0]["object"] == models[1]["object"] == "list"
        assert [card["id"] for card in models[0]["data"]] == [card["id"] for card in models[1]["data"]]


async def test_errors_have_their_status_and_shape(qwen: Qwen, tmp_path: Path) -> None:
    chat = {"model": "any", "messages": HELLO}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/sessions/none", {}),
        ("GET", "/sessions/none/rollout", {}),
        ("GET", "/sessions/none/trace_entries", {}),
        ("DELETE", "/sessions/none", {}),
        ("POST", "/v1/chat/completions", {"json": chat}),
        ("POST", "/v1/chat/completions", {"json": chat, "headers": bearer("wrong")}),
        ("POST", "/v1/chat/completions", {"content": b"{", "headers": bearer("s-1")}),
        ("POST", "/v1/chat/completions", {"content": b"[]", "headers": bearer("s-1")}),
        ("POST", "/v1/chat/completions", {"json": {**chat, "n": 2}, "headers": bearer("s-1")}),
    ]
    async with both(qwen, tmp_path / "c", ("hi",)) as (mine, reference):
        for client in (mine, reference):
            await session(client, session_id="s-1")
        for method, path, request in asked:
            found, expected = [await client.request(method, path, **request) for client in (mine, reference)]
            assert found.status_code == expected.status_code, (method, path, found.text)
            said, reference_said = found.json(), expected.json()
            if isinstance(reference_said.get("error"), dict):
                assert said["error"].keys() >= reference_said["error"].keys()
                assert isinstance(said["error"]["message"], str)
            else:
                assert said == reference_said


async def test_admin_key_guards_the_same_routes(qwen: Qwen, tmp_path: Path) -> None:
    key = "admin-key-0123456789"
    paths = ("/sessions", "/sessions/s-1", "/sessions/s-1/rollout", "/sessions/s-1/trace_entries")
    async with both(qwen, tmp_path / "c", ("hi",), admin_key=key) as (mine, reference):
        answers = []
        for client in (mine, reference):
            made = await client.post("/sessions", json={"session_id": "s-1"}, headers=bearer(key))
            assert made.status_code == 200
            refused = [await client.post("/sessions", headers=bearer("s-1")), await client.delete(paths[1])]
            refused += [await client.get(path) for path in paths]
            refused += [await client.get(path, headers=bearer("wrong")) for path in paths]
            refused += [await client.get(path, headers={"x-api-key": "s-1"}) for path in paths]
            allowed = [await client.get(path, headers={"x-goog-api-key": key}) for path in paths]
            await ask(client, "s-1")
            answers.append(
                (
                    [(one.status_code, one.json()) for one in refused],
                    [one.status_code for one in allowed],
                    (await client.get("/health")).json()["upstreams"],
                )
            )
        assert answers[0] == answers[1]
        assert {status for status, _ in answers[0][0]} == {401}


PATHS = {
    "/v1/chat/completions": {"messages": HELLO},
    "/chat/completions": {"messages": HELLO},
    "/any/prefix/v1/chat/completions": {"messages": HELLO},
    "/v1/responses": {"input": "hello"},
    "/responses": {"input": "hello", "instructions": "be brief"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/anthropic/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1beta/models/any:generateContent": {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
    "/models/any:generateContent": {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
}
KEYS: dict[str, Callable[[str], dict[str, str]]] = {
    "bearer": bearer,
    "x-api-key": lambda key: {"x-api-key": key},
    "x-goog-api-key": lambda key: {"x-goog-api-key": key},
}


async def test_each_path_takes_the_key_in_each_header(qwen: Qwen, tmp_path: Path) -> None:
    async with both(qwen, tmp_path / "c", ("hi",)) as (mine, reference):
        for client in (mine, reference):
            await session(client, session_id="s-1")
        for path, body in PATHS.items():
            for name, header in KEYS.items():
                request = {"json": {"model": "any", **body}, "headers": header("s-1")}
                found, expected = [await client.post(path, **request) for client in (mine, reference)]
                assert (found.status_code, expected.status_code) == (200, 200), (path, name, found.text)
                assert _kind(found.json()) == _kind(expected.json()), path
        counted = await mine.post(
            "/v1/messages/count_tokens", json={"model": "any", "messages": HELLO}, headers=bearer("s-1")
        )
        assert counted.json()["input_tokens"] > 3
        google = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
        counted = await mine.post("/v1beta/models/any:countTokens", json=google, headers=bearer("s-1"))
        assert counted.json()["totalTokens"] > 3
        status = (await mine.get("/sessions/s-1")).json()
        assert status["n_turns"] == len(PATHS) * len(KEYS)  # counts are no calls


def _kind(answer: dict[str, Any]) -> tuple[Any, ...]:
    return answer.get("object"), answer.get("type"), "candidates" in answer


async def test_trace_entries_are_a_training_trace(qwen: Qwen, tmp_path: Path) -> None:
    """Two interleaved conversations: entries come chain by chain, so that TRL makes two rows of them."""
    from openenv.core.harness import TrainingTrace

    async with qwen.server(CALL) as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, purpose="train")
        one, other = [*HELLO], [{"role": "user", "content": "you are a sub-agent"}]
        for _ in range(3):
            for messages in (one, other):
                reply = await ask(client, key, messages)
                messages += [
                    reply,
                    {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "x"},
                ]
        entries = (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]
    trace = TrainingTrace.from_entries(entries)
    assert [turn.metadata["index"] for turn in trace.turns] == [0, 2, 4, 1, 3, 5]
    for before, after in zip(trace.turns, trace.turns[1:], strict=False):
        known = before.prompt_token_ids + before.completion_token_ids
        assert (after.prompt_token_ids[: len(known)] == known) == (after.metadata["index"] != 1)
    assert [turn.request["tools"] for turn in trace.turns] == [[TOOL]] * 6
