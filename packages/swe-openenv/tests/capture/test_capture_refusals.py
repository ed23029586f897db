"""What the capture server refuses, in one sentence each, and what its clients cannot reach."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner

from swe_core.errors import ConfigError, UsageError
from swe_core.run.components import load_plugins, resolve_component
from swe_core.run.settings import load_settings
from swe_openenv.capture import CaptureServer
from swe_openenv.capture.command import capture as command
from swe_openenv.capture.engines import Choice, Engines, OpenEngine
from swe_testing.loopback import LoopbackServer
from swe_testing.provider import ScriptedProvider, say

from .engines import HELLO, MODEL, Qwen, ask, bearer, ours, session

pytestmark = pytest.mark.anyio

REFUSED: dict[str, tuple[Any, str]] = {
    "api_key": ({"api_key": "sk-secret"}, "set the environment variable that the engine's api_key_env names"),
    "header": ({"auth_header": "x-api-key"}, "auth_header is not accepted"),
    "provider": ({"provider": "anthropic"}, "provider is not accepted"),
    "typo": ({"max_model_call": 3}, "unknown field 'max_model_call'"),
    "url is no string": ({"llm_url": 7}, "llm_url must be a string"),
    "url is no URL": ({"llm_url": "ftp://x"}, "is not a base URL"),
    "url with a password": ({"llm_url": "http://u:pw-secret@x/v1"}, "has a user or password"),
    "no model": ({"llm_url": "http://127.0.0.1:9"}, "does not list its models"),
    "output cap": ({"metadata": {"max_output_tokens": 0}}, "must be a positive integer"),
    "list": ([1], "the body must be a JSON object"),
    "reserved": ({"metadata": {"purpose": 1}}, "metadata cannot include reserved key: purpose"),
    "deep": ({"metadata": {"a": orjson.loads("[" * 64 + "]" * 64)}}, "metadata has more than 64 levels"),
    "url with a blank": ({"llm_url": "http://a b/", "model": "m"}, "has a blank or a control character"),
    "url with a null": ({"llm_url": "http://a\0/", "model": "m"}, "has a blank or a control character"),
    "url of two lines": ({"llm_url": "http://127.0.0.1:9/\nx", "model": "m"}, "has a blank or a control"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_bad_session_is_refused_in_a_sentence(qwen: Qwen, tmp_path: Path, name: str) -> None:
    body, sentence = REFUSED[name]
    async with ours(None, tmp_path / "c") as client:
        answer = await client.post("/sessions", json=body)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert sentence in message
        assert "secret" not in message
        assert "\n" not in message
        assert (await client.post("/sessions", content=b"{")).json()["error"][
            "message"
        ] == "body must be JSON"
        assert (await client.post("/sessions", content=b"x" * 2_000_000)).status_code == 413


async def test_session_with_64_levels_of_metadata_survives_a_restart(qwen: Qwen, tmp_path: Path) -> None:
    metadata = {"a": orjson.loads("[" * 63 + "]" * 63)}
    async with qwen.server("hi") as engine:
        async with ours(engine, tmp_path / "c") as client:
            key = await session(client, metadata=metadata)
        async with ours(engine, tmp_path / "c") as client:
            assert (await client.get(f"/sessions/{key}/rollout")).json()["metadata"] == metadata


async def test_body_that_is_not_as_encoded_as_it_says_is_refused(tmp_path: Path, caplog: Any) -> None:
    async with ours(None, tmp_path / "c") as client:
        answer = await client.post("/sessions", content=b"hello", headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 400
        assert "not encoded as its headers say" in answer.json()["error"]["message"]
    assert not [one for one in caplog.records if one.exc_info]


async def test_admin_key_is_no_session(qwen: Qwen, tmp_path: Path) -> None:
    admin = "admin-0123456789"
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c", admin_key=admin) as client:
        refused = await client.post("/sessions", json={"session_id": admin}, headers=bearer(admin))
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "session_id must not be the admin key: agents get it"
        assert (await client.get("/sessions", headers=bearer(admin))).json() == {"sessions": []}


class Intranet(LoopbackServer):
    """A service that is no engine."""

    def routes(self) -> Iterable[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        status = 422 if request.path.endswith("/chat/completions") else 403
        return web.json_response({"error": {"message": "SECRET-BODY"}}, status=status)


async def test_answer_of_a_foreign_service_is_not_shown(tmp_path: Path, caplog: Any) -> None:
    async with Intranet() as service, ours(None, tmp_path / "c") as client:
        body = {"llm_url": service.origin, "model": "m", "purpose": "train"}
        refused = await client.post("/sessions", json=body)
        assert refused.status_code == 400
        assert "(403)" in refused.json()["error"]["message"]
        unnamed = await client.post("/sessions", json={"llm_url": service.origin})
        assert unnamed.status_code == 400
        key = await session(client, llm_url=service.origin, model="m")
        call = await client.post(
            "/v1/chat/completions", json={"model": "any", "messages": HELLO}, headers=bearer(key)
        )
        assert call.status_code == 422
        assert "the engine refuses this request (422)" in call.text
        assert "SECRET" not in refused.text + unnamed.text + call.text
    assert "SECRET" not in caplog.text


async def test_unreachable_engine_says_so_and_is_probed_again(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine:
        url, port = engine.url, engine.url.rpartition(":")[2]
    async with ours(None, tmp_path / "c") as client:
        body = {"llm_url": url, "model": MODEL, "purpose": "train"}
        refused = await client.post("/sessions", json=body)
        assert refused.status_code == 400
        assert port in refused.json()["error"]["message"]
        made = (await client.post("/sessions", json={**body, "purpose": "auto"})).json()
        assert (made["capture_level"], made["rollout_type"]) == ("text", "eval")
        async with qwen.server("hi", port=int(port)):
            made = (await client.post("/sessions", json=body)).json()
            assert (made["capture_level"], made["rollout_type"]) == ("tokens", "train")


async def test_sessions_that_ask_at_once_share_a_probe(qwen: Qwen) -> None:
    settings = load_settings(None, ("engine.vllm.renderer=qwen3", "engine.vllm.max_retries=0"))
    resolve = partial(resolve_component, settings, load_plugins(settings.run), "engine")
    async with qwen.server("hi", probe="500") as engine, Engines(resolve, "") as engines:
        found: list[OpenEngine] = []

        async def ask_once() -> None:
            found.append(await engines.probe(Choice(engine.url, MODEL)))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask_once)
        assert [(one.level, one.reached) for one in found] == [("text", False)] * 8
        assert len(engine.probes) == 1
        await ask_once()
        assert len(engine.probes) == 2


async def test_probe_whose_client_left_is_done_by_the_next(qwen: Qwen) -> None:
    settings = load_settings(None, ("engine.vllm.renderer=qwen3",))
    resolve = partial(resolve_component, settings, load_plugins(settings.run), "engine")
    async with qwen.server("hi") as engine, Engines(resolve, "") as engines:
        found: list[OpenEngine] = []
        leaves = anyio.CancelScope()

        async def leave() -> None:
            with leaves:
                await engines.probe(Choice(engine.url, MODEL))

        async def wait() -> None:
            leaves.cancel()
            found.append(await engines.probe(Choice(engine.url, MODEL)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            tasks.start_soon(wait)
        assert leaves.cancelled_caught
        assert [one.level for one in found] == ["tokens"]


async def test_key_of_the_server_goes_to_its_own_engine_alone(
    qwen: Qwen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that names another URL must not learn the key, nor see it in an error."""
    secret = "sk-engine-0123456789"
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, secret)
    async with qwen.server("hi", key=secret) as engine, ScriptedProvider([say("hi")]) as other:
        async with ours(engine, tmp_path / "c") as client:
            await ask(client, await session(client, purpose="train"))
            assert engine.requests[0].headers["Authorization"] == f"Bearer {secret}"
            url = other.url.removesuffix("/v1")
            await ask(client, await session(client, llm_url=url, model=MODEL))
            assert (await client.get("/health")).json()["upstream_auth"] is True
    assert "Authorization" not in other.requests[0].headers
    assert secret not in str(other.requests)


async def test_sessions_do_not_see_each_other(qwen: Qwen, tmp_path: Path, caplog: Any) -> None:
    admin = "admin-0123456789"
    caplog.set_level(logging.DEBUG)
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c", admin_key=admin) as client:
        for key in ("key-of-one-session", "key-of-another"):
            await client.post("/sessions", json={"session_id": key}, headers=bearer(admin))
            await ask(client, key)
        for path in ("", "/rollout", "/trace_entries"):
            refused = await client.get(
                f"/sessions/key-of-another{path}", headers=bearer("key-of-one-session")
            )
            assert refused.status_code == 401
        for path in ("/rollout/x/v1/chat/completions", "/rollout/key-of-another/v1/chat/completions"):
            body = {"model": "any", "messages": HELLO}
            refused = await client.post(path, json=body, headers=bearer("key-of-one-session"))
            assert refused.status_code == 401
        for name in ("..%2F..%2Fetc", "%2e%2e", "a%00b", "x" * 3000):
            unknown = await client.get(f"/sessions/{name}/rollout", headers=bearer(admin))
            assert unknown.status_code == 404
            deleted = await client.delete(f"/sessions/{name}", headers=bearer(admin))
            assert (deleted.status_code, deleted.json()) == (200, {"deleted": False})
        for file in (tmp_path / "c" / "rollouts").rglob("turns.jsonl"):
            file.write_text('{"no": "turn"}\n' * 2)
        failed = await client.get("/sessions/key-of-another/rollout", headers=bearer(admin))
        assert failed.status_code == 500
        assert failed.json()["error"]["message"] == "the capture server failed to answer; its log says why"
    ours_said = [one.getMessage() for one in caplog.records if one.name.startswith("swe_")]
    assert any("is not a recorded call" in text for text in ours_said)
    assert not any("key-of" in text or admin in text for text in ours_said)


async def test_huge_body_is_refused_and_others_are_served(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client)

        async def huge() -> None:
            messages = [{"role": "user", "content": "x" * 100_000_000}]
            answer = await client.post(
                "/v1/chat/completions", json={"model": "any", "messages": messages}, headers=bearer(key)
            )
            assert answer.status_code in (400, 413)
            assert "error" in answer.json()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(huge)
            await ask(client, await session(client))
        await ask(client, key)


async def test_deleted_session_has_no_key_any_more(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client)
        await ask(client, key)
        assert (await client.delete(f"/sessions/{key}")).json() == {"deleted": True}
        refused = await client.post(
            "/v1/chat/completions", json={"model": "any", "messages": HELLO}, headers=bearer(key)
        )
        assert refused.status_code == 401
        assert (await client.get(f"/sessions/{key}")).json() == {"error": "unknown session"}
        assert await session(client, session_id=key) == key
        assert (await client.get(f"/sessions/{key}")).json()["n_turns"] == 0


BAD_START: dict[str, tuple[dict[str, Any], str]] = {
    "host": ({"host": "0.0.0.0"}, "give it an admin key"),
    "name": ({"host": "example.org"}, "give it an admin key"),
    "foreign host": ({"host": "192.0.2.1", "admin_key": "k"}, "cannot listen on port"),
    "model": ({"llm_url": "http://127.0.0.1:9"}, "pass --model NAME"),
    "url": ({"llm_url": "nonsense", "model": "m"}, "is not a base URL"),
    "budget": ({"max_model_calls": -1}, "0 is no limit"),
    "setting": (
        {"sets": ["engine.vllm.temprature=1"], "llm_url": "http://127.0.0.1:9", "model": "m"},
        "did you",
    ),
    "directory": ({"out": "/proc/self/status"}, "give another with --out"),
}


@pytest.mark.parametrize("name", BAD_START)
def test_bad_start_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    options, sentence = BAD_START[name]
    server = CaptureServer(**{"llm_url": "", "model": "", "port": 0, "out": tmp_path / "c", **options})
    with pytest.raises(UsageError, match=sentence) as refused:
        server.start()
    assert "\n" not in str(refused.value)
    server.stop()


def test_command_needs_the_admin_key_that_it_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_ADMIN_KEY", raising=False)
    ended = CliRunner().invoke(command, ["--admin-key-env", "NO_ADMIN_KEY"])
    assert isinstance(ended.exception, UsageError)
    assert "'NO_ADMIN_KEY' has no admin key" in str(ended.exception)


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    one = CaptureServer(llm_url="", model="", port=0, out=tmp_path / "one")
    one.start()
    try:
        port = httpx.URL(one.url).port
        other = CaptureServer(llm_url="", model="", port=port or 0, out=tmp_path / "other")
        with pytest.raises(ConfigError, match=f"port {port}"):
            other.start()
    finally:
        one.stop()
