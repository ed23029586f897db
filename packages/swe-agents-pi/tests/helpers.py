"""A task, and an endpoint whose replies are scripted: what the tests of Pi share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import anyio
from aiohttp import web

from swe_core import AgentContext
from swe_testing.loopback import LoopbackServer
from swe_testing.records import make_task

TOKEN = "the-token-of-this-rollout"
TASK = make_task(problem_statement="It is broken.")


def context(base_url: str = "http://127.0.0.1:4000/r/1/v1") -> AgentContext:
    """What an agent in a sandbox is given."""
    return AgentContext(TASK, "Fix it.", base_url, TOKEN, "policy", "/testbed")


@dataclass(frozen=True)
class Reply:
    """What the endpoint answers: a stream of deltas, or where `body` is given just that."""

    deltas: Sequence[Mapping[str, Any]] = ()
    finish: str | None = "stop"
    status: int = 200
    body: str | None = None
    content_type: str = "application/json"
    breaks: bool = False


def says(text: str, finish: str | None = "stop", breaks: bool = False) -> Reply:
    return Reply([{"role": "assistant"}, {"content": text}], finish=finish, breaks=breaks)


def calls(tool: str, arguments: str) -> Reply:
    """A call of `tool`; `arguments` is the raw text that the model sampled."""
    function = {"name": tool, "arguments": arguments}
    delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    return Reply([{"role": "assistant"}, delta], finish="tool_calls")


def fails(status: int, message: str = "said the test") -> Reply:
    return Reply(status=status, body=json.dumps({"error": {"message": message}}))


class ScriptedLLM(LoopbackServer):
    """Answers call after call from `replies`; one call too many is answered 418. None hangs for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Reply | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.hanging = anyio.Event()
        self.url = ""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.handle)]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.url = f"{self.origin}/v1"
        return self

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        if len(self.bodies) > len(self.replies):
            return web.Response(status=418, text="the script is over")
        reply = self.replies[len(self.bodies) - 1]
        if reply is None:
            self.hanging.set()
            await anyio.sleep_forever()
        assert reply is not None
        if reply.body is not None:
            return web.Response(status=reply.status, text=reply.body, content_type=reply.content_type)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in reply.deltas:
            await response.write(_chunk(delta, None))
        if reply.breaks:
            assert request.transport is not None
            request.transport.abort()
        elif reply.finish is not None:
            await response.write(_chunk({}, reply.finish) + b"data: [DONE]\n\n")
        return response


def _chunk(delta: Mapping[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
