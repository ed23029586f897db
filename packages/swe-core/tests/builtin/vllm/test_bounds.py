"""Servers that never end, or send what no reply needs: each is an error of its engine, soon."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable
from typing import Any

import anyio
import orjson
import pytest
import tenacity
from aiohttp import web

from swe_core.api.engine import Engine
from swe_core.builtin import bounds
from swe_core.builtin.http_engine import ErrorTranslator, Transient
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai import engine as openai_module
from swe_core.builtin.vllm.replies import Asked, Chunk, Replies
from swe_core.errors import EngineError, RequestRefused
from swe_testing.loopback import LoopbackServer
from swe_testing.provider import Ear

from .conftest import Qwen, chat, make_engine, session

ASKED = 8
MUCH = 2**16
ENGINES = ("openai", "vllm")


class Odd(LoopbackServer):
    """A server that answers each request for a reply with `pieces`, and counts their bytes."""

    def __init__(self, pieces: Iterable[bytes], root: str, status: int = 200, **headers: str) -> None:
        super().__init__()
        self.sent = self.asked = 0
        self._pieces = pieces
        self._root = root
        self._status = status
        self._headers = {"Content-Type": "text/event-stream", **headers}
        self.pause = 0.0

    def routes(self) -> Iterable[web.RouteDef]:
        return [web.post("/{path:.*}", self._answer), web.get("/v1/models", self._list)]

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted", "root": self._root, "max_model_len": 4096}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        response = web.StreamResponse(status=self._status, headers=self._headers)
        await response.prepare(request)
        for piece in self._pieces:
            await response.write(piece)
            self.sent += len(piece)
            await anyio.sleep(self.pause)
        return response


async def failure(name: str, qwen: Qwen, server: Odd, *, stream: bool = True, **settings: Any) -> str:
    """Return the type and the text of the error that a call of an engine ends with."""
    async with server:
        engine: Engine
        if name == "vllm":
            engine = make_engine(server.origin, **{"max_retries": 0, **settings})
        else:
            given = {"url": f"{server.origin}/v1", "model": "scripted", "max_retries": 0, **settings}
            engine = openai_module.OpenAIEngine(OpenAIConfig(**given))
        async with engine:
            with anyio.fail_after(60), pytest.raises(EngineError) as caught:
                await engine.complete(
                    chat(max_tokens=ASKED), session(), Ear() if stream or name == "vllm" else None
                )
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "TOKENS", ASKED)
    monkeypatch.setattr(bounds, "EVENT", 2**20)
    monkeypatch.setattr(bounds, "CALLS", 100)
    monkeypatch.setattr(openai_module, "_BACKOFF", tenacity.wait_none())


def event(choice: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps({"choices": [choice]})


SAID = event({"delta": {"content": "a"}, "token_ids": [7], "logprobs": {"token_logprobs": [-1.0]}})
QUIET = event({"delta": {}, "token_ids": []})
DEEP = b'{"choices":[{"delta":{"x":%b1%b}}]}' % (b'{"a":' * 500, b"}" * 500)
UNBOUNDED = "EngineProtocolError: .* sends (an event of )?more than [0-9]+ bytes"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("piece", "status", "error"),
    [
        (b"data: " + b"x" * MUCH, 200, UNBOUNDED),
        (b"data:\n" * MUCH, 200, UNBOUNDED),
        (b": waiting\n\n" * MUCH, 200, UNBOUNDED),
        (SAID * 100, 200, "more than 32 pieces|more ids than the 8 it was asked for"),
        (b"x" * MUCH, 500, r"EngineUnavailable: .* fails \(500\): xxx"),
        (b'{"error":' * MUCH, 400, r"RequestRefused: .* refuses this request \(400\)"),
    ],
    ids=["event", "lines", "comments", "reply", "error", "deep-error"],
)
async def test_server_that_never_ends_is_left(
    qwen: Qwen, name: str, piece: bytes, status: int, error: str
) -> None:
    server = Odd(itertools.repeat(piece), str(qwen.path), status)
    found = await failure(name, qwen, server)
    assert re.search(error, found)
    assert len(found) < 1000
    assert server.sent < 16 * 2**20  # most of it lies in the buffers of the sockets


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("piece", [b": waiting\n\n", QUIET, b"\n"], ids=["comment", "event", "blank"])
async def test_reply_that_is_only_kept_alive_is_late(qwen: Qwen, name: str, piece: bytes) -> None:
    server = Odd(itertools.repeat(piece), str(qwen.path))
    server.pause = 0.05
    found = await failure(name, qwen, server, stream=piece != b"\n", timeout=0.3)
    assert re.search(r"EngineUnavailable: .* sent nothing (in time|for 0\.3 s)", found)


def calls(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"delta": {"tool_calls": calls}, "message": {"role": "assistant", "tool_calls": calls}}


LONG = "x" * (bounds.NAME + 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ([calls(*({"index": at, "id": f"{at}"} for at in range(101)))], "100 tool calls"),
        ([calls({"index": 0, "id": LONG})], "an id or a name"),
        ([calls({"index": 0, "id": "c", "function": {"name": LONG, "arguments": "{}"}})], "an id or a name"),
        ([orjson.Fragment(DEEP.replace(b'"delta"', b'"message":{},"delta"'))], "128 levels"),
        ([calls({"index": 0, "x": [0] * 100_001})], "100000 values"),
        ([calls({"index": 0, "function": {"arguments": "x" * 2**20}})], "more than [0-9]+ bytes"),
    ],
    ids=["calls", "id", "name", "levels", "values", "bytes"],
)
async def test_reply_with_too_much_is_an_error(
    qwen: Qwen, stream: bool, choices: list[Any], what: str
) -> None:
    kind = "text/event-stream" if stream else "application/json"
    raw = orjson.dumps({"choices": choices})
    server = Odd([b"data: %b\n\n" % raw if stream else raw], "", **{"Content-Type": kind})
    found = await failure("openai", qwen, server, stream=stream)
    assert re.match(f"EngineProtocolError: .*{what}", found)


async def test_calls_are_counted_over_all_events(qwen: Qwen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "PIECES", 100)
    server = Odd((event(calls({"index": at, "id": f"c{at}"})) for at in itertools.count()), "")
    assert "100 tool calls" in await failure("openai", qwen, server)


@pytest.mark.parametrize("name", ENGINES)
async def test_compressed_reply_counts_by_what_it_becomes(qwen: Qwen, name: str) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    packed = [bomb.compress(b"data: " + bytes(200 * 2**20)), bomb.flush()]
    found = await failure(name, qwen, Odd(packed, str(qwen.path), **{"Content-Encoding": "gzip"}))
    assert re.match(UNBOUNDED, found)


@pytest.mark.parametrize("name", ENGINES)
async def test_redirect_is_not_followed(qwen: Qwen, name: str) -> None:
    location = {"Location": "https://user:secret@elsewhere.invalid/v1?key=secret"}
    server = Odd([], str(qwen.path), 307, **location)
    found = await failure(name, qwen, server)
    assert re.match(r"EngineRefused: .* redirects to 'https://elsewhere.invalid/v1' \(307\)", found)
    assert server.asked == 1


@pytest.mark.parametrize(("first", "kind"), [(True, RequestRefused), (False, Transient)])
def test_reply_that_has_begun_is_no_refusal_of_the_request(first: bool, kind: type[Exception]) -> None:
    replies = Replies(ErrorTranslator("server", "http://h", "", "m", "KEY", None))
    with pytest.raises(kind, match="boom"):
        replies.add(Chunk(), b'{"error": {"message": "boom", "code": 400}}', Asked(b"1", 9), first=first)
