"""Routes without `/rollout/{key}`, where the key names the rollout, and further routes of a server."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from aiohttp import web

from swe_core.api.records import Turn
from swe_core.errors import ConfigError
from swe_core.interception.server import InterceptionServer

from .helpers import HELLO, Typist, talk, who

BODY: dict[str, Any] = {"model": "any", "messages": HELLO}


async def test_key_names_the_rollout_on_keyed_routes() -> None:
    turns: dict[str, list[Turn]] = {"a": [], "b": []}
    async with (
        Typist("hi") as engine,
        InterceptionServer(keyed=True) as server,
        server.session(engine, who("a"), turns["a"].append) as gate,
        server.session(engine, who("b"), turns["b"].append) as other,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for path in ("/v1/chat/completions", "/chat/completions", "/a/b/v1/chat/completions"):
            answer = await client.post(path, json=BODY, headers={"x-api-key": gate.token})
            assert answer.json()["choices"][0]["message"]["content"] == "hi"
        bearer = {"Authorization": f"Bearer {other.token}"}
        asked = {**BODY, "max_tokens": 5}
        answer = await client.post("/messages", json=asked, headers={**bearer, "x-api-key": "key-of-c"})
        assert answer.json()["content"][0]["text"] == "hi"
        assert (await client.post(f"{other.path}/chat/completions", json=BODY, headers=bearer)).is_success
        for path, shape in (("/messages", "type"), ("/chat/completions", "error")):
            refused = await client.post(path, json=asked, headers={"x-api-key": "key-of-c"})
            assert (refused.status_code, shape in refused.json()) == (401, True)
            assert "key-of-c" not in refused.text
    assert {name: len(calls) for name, calls in turns.items()} == {"a": 3, "b": 2}


async def test_keyed_routes_are_served_only_when_asked_for(server: InterceptionServer) -> None:
    engine = Typist()
    async with talk(server, engine) as said, httpx.AsyncClient(base_url=server.url) as client:
        for path in ("/v1/chat/completions", "/v1/messages"):
            reply = await client.post(path, json=BODY, headers={"x-api-key": said.gate.token})
            assert reply.status_code == 404
    assert engine.asked == []


async def test_further_routes_stand_beside_those_of_rollouts() -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=request.match_info["name"])

    routes = [web.post("/hello/{name}", hello)]
    async with InterceptionServer(routes=routes, keyed=True) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.post("/hello/you")).text == "you"
            assert (await client.get("/healthz")).json() == {"status": "ok"}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_server_listens_on_the_host_that_it_is_given() -> None:
    async with InterceptionServer(host="::1") as server, httpx.AsyncClient(base_url=server.url) as client:
        assert server.url.startswith("http://[::1]:")
        assert (await client.get("/healthz")).is_success
    with pytest.raises(ConfigError, match=r"port 0 of 192\.0\.2\.1"):
        async with InterceptionServer(host="192.0.2.1"):
            pass
