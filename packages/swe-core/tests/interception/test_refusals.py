"""What the server rejects: wrong tokens, wrong paths, wrong bodies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from swe_core.api.engine import Completion
from swe_core.errors import EngineError
from swe_core.interception.server import UNREADABLE, InterceptionServer

from .helpers import HELLO, Plugin, by_hand, talk, who


async def test_wrong_token_looks_like_unknown_rollout(server: InterceptionServer) -> None:
    engine = Plugin(Completion(message={"role": "assistant", "content": "secret"}))
    async with (
        server.session(engine, who("one"), lambda _: None) as one,
        server.session(engine, who("two"), lambda _: None) as two,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert one.token != two.token
        for method, path in (("POST", "/chat/completions"), ("GET", "/models")):
            answers = set()
            for where, authorization in (
                (one.path, "Bearer"),
                (one.path, "Bearer \xff"),
                (one.path, f"Bearer {two.token}"),
                ("/rollout/three/v1", f"Bearer {one.token}"),
                ("/rollout/three/v1", "Bearer"),
            ):
                headers = {"Authorization": authorization.encode("latin-1")}
                reply = await client.request(method, where + path, headers=headers, content=b"{}")
                answers.add((reply.status_code, reply.text))
            ((status, text),) = answers
            error = json.loads(text)["error"]
            assert (status, error["type"]) == (401, "authentication_error")
            assert "no such rollout, or not its token" in error["message"]
    assert one.turns == 0
    assert engine.ended == ["two", "one"]


RIGHT = {"/chat/completions": "Authorization: Bearer", "/responses": "Authorization: Bearer"}
RIGHT |= {"/messages": "x-api-key", "/messages/count_tokens": "x-api-key"}
RIGHT |= {"/models/m:generateContent": "x-goog-api-key"}


@pytest.mark.parametrize(("path", "right"), RIGHT.items())
async def test_key_in_a_wrong_header_is_rejected(server: InterceptionServer, path: str, right: str) -> None:
    async with talk(server, Plugin(EngineError(""))) as said, httpx.AsyncClient() as client:
        token = said.gate.token
        for wrong in ({}, {"Authorization": f"Basic {token}"}, {"X-Other-Key": token}):
            for rollout in (said.gate.path, "/rollout/unknown/v1"):
                reply = await client.post(f"{server.url}{rollout}{path}", headers=wrong, content=b"{}")
                assert reply.status_code == 401
                assert f"no key in {right}: send the rollout's token" in reply.json()["error"]["message"]


async def test_finished_rollout_is_unknown(server: InterceptionServer) -> None:
    engine = Plugin(Completion(message={"role": "assistant", "content": "x"}))
    async with server.session(engine, who(), lambda _: None) as gate:
        with pytest.raises(ValueError, match="'r1' is registered already"):
            async with server.session(engine, who(), lambda _: None):
                pass
    async with by_hand(server, gate) as http:
        assert (await http.get("/models")).status_code == 401
    async with server.session(engine, who(), lambda _: None) as again:
        assert again.token != gate.token


async def test_healthz_and_unknown_paths_are_answered(server: InterceptionServer) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        for method, path, status in [("GET", "/nothing", 404), ("DELETE", "/healthz", 405)]:
            response = await client.request(method, path)
            assert response.status_code == status
            assert response.json()["error"]["type"] == "invalid_request_error"


async def test_invalid_body_is_a_400_with_a_reason(server: InterceptionServer) -> None:
    for body, sentence in (
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "'messages' is missing or null"),
    ):
        async with talk(server, Plugin(EngineError("must not be asked"))) as said:
            response = await said.http.post("/chat/completions", content=body)
        assert response.status_code == 400
        assert sentence in response.json()["error"]["message"]
        assert sentence in said.gate.refusal
        assert (said.gate.turns, said.gate.refusals, said.gate.failure) == (0, 1, None)
        assert not said.gate.called.is_set()


async def test_body_over_the_limit_is_a_413() -> None:
    async def chunked() -> AsyncIterator[bytes]:  # no Content-Length to refuse by
        for _ in range(3):
            yield b" " * 400

    engine = Plugin(Completion(message={"role": "assistant", "content": "ok"}))
    async with InterceptionServer(max_body=1000) as small, talk(small, engine) as said:
        for body in (b" " * 1001, chunked()):
            response = await said.http.post("/chat/completions", content=body)
            assert response.status_code == 413
            assert response.json()["error"]["type"] == "invalid_request_error"
            assert "exceeded" in said.gate.refusal
        fits = json.dumps({"messages": HELLO}).ljust(1000).encode()
        assert (await said.http.post("/chat/completions", content=fits)).status_code == 200


async def test_wrong_encoding_is_a_400(server: InterceptionServer, caplog: pytest.LogCaptureFixture) -> None:
    async with talk(server, Plugin(EngineError("must not be asked"))) as said:
        for path in ("/chat/completions", "/tools/any"):
            response = await said.http.post(path, content=b"{}", headers={"Content-Encoding": "gzip"})
            assert (response.status_code, response.json()["error"]["message"]) == (400, UNREADABLE)
    assert said.gate.refusal == UNREADABLE
    assert caplog.records == []  # nothing failed here


async def test_invalid_http_leaves_no_traceback(server: InterceptionServer, caplog: Any) -> None:
    for request in (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nodd\r\n",
        b"\x00\x01\r\n\r\n",
    ):
        async with await anyio.connect_tcp("127.0.0.1", int(server.url.rpartition(":")[2])) as stream:
            await stream.send(request)
            with anyio.fail_after(60):
                reply = b"".join([piece async for piece in stream])
        assert b" 400 Bad Request" in reply
    assert caplog.records == []
