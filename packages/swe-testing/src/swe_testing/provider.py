"""A scripted OpenAI-compatible provider on loopback: what a real one answers, and how real ones fail.

async with ScriptedProvider([say("hello"), call_tool("bash", {"command": "ls"})]) as provider:
    ...  # point a client at provider.url
    assert provider.requests[0].body["model"] == "m"
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from aiohttp import web

from swe_core.api.deltas import cut
from swe_core.api.engine import Delta, Usage
from swe_core.rollout.recording import RecordedReply
from swe_testing.loopback import LoopbackServer

Fault = Literal[
    "ok",
    "html",
    "400",
    "401",
    "403",
    "404",
    "413",
    "429",
    "500",
    "redirect",
    "hang",
    "drop",
    "not-json",
    "no-choices",
    "null-content",
    "error-in-reply",
    "broken-stream",
    "broken-stream-early",
    "hang-in-stream",
    "error-event",
    "error-event-early",
    "garbage-event",
    "no-finish",
]
"""How one request is answered. `early` faults come before the first piece; `hang` answers nothing until the
client leaves; `drop` closes the connection unanswered; `no-finish` omits the finish reason."""


def say(text: str, **more: Any) -> RecordedReply:
    """Return a reply of text; `more` are further keys of the message, such as `reasoning_content`."""
    return RecordedReply(
        message={"role": "assistant", "content": text, **more},
        usage=Usage(prompt_tokens=10, completion_tokens=max(1, len(text) // 4)),
    )


def call_tool(name: str, arguments: Mapping[str, Any], call_id: str = "call_1") -> RecordedReply:
    """Return a reply that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return RecordedReply(
        message={
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        finish_reason="tool_calls",
        usage=Usage(prompt_tokens=10, completion_tokens=5),
    )


@dataclass
class Ear:
    """Record the pieces of a streamed reply: a listener for an engine's `complete`."""

    heard: list[Delta] = field(default_factory=list)

    async def __call__(self, delta: Delta) -> None:
        self.heard.append(dict(delta))

    def text(self, key: str = "content") -> str:
        """Return the text below a key, such as `reasoning_content`."""
        return "".join(delta.get(key) or "" for delta in self.heard)


@contextlib.contextmanager
def refusing_url() -> Iterator[str]:
    """Yield a base URL whose port is taken and refuses every connection."""
    with socket.socket() as bound:  # bound and never listening: no other process can take the port
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


@dataclass(slots=True)
class Seen:
    """A chat-completions request that arrived."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    finished: anyio.Event = field(default_factory=anyio.Event)
    """Set when the request is over, in any way."""
    disconnected: bool = False
    """Whether the client left before the reply was complete."""


class ScriptedProvider(LoopbackServer):
    """Serve `/v1/chat/completions` and `/v1/models`.

    `requests` are the chat-completions requests that arrived; `asked` is set by the first one.

    Args:
        replies: Replies of the successful requests, in order; the last one is repeated.
        faults: Faults of the requests, in order; those after the last one as `then`.
        then: See `faults`.
        models: Names in `/models`; None answers it with 404.
        models_fault: Fault of `/models`.
        key: Where not None, another bearer token is answered with 401, quoting it.
        piece: Characters of text in a streamed piece.
        retry_after: The `Retry-After` of 429 replies.
    """

    def __init__(
        self,
        replies: Sequence[RecordedReply] = (),
        *,
        faults: Iterable[Fault] = (),
        then: Fault = "ok",
        models: Sequence[str] | None = ("scripted",),
        models_fault: Fault = "ok",
        key: str | None = None,
        piece: int = 8,
        retry_after: str | None = None,
    ) -> None:
        super().__init__()
        self.requests: list[Seen] = []
        self.asked = anyio.Event()
        self._replies = itertools.chain(
            replies or [say("ok")], itertools.repeat((replies or [say("ok")])[-1])
        )
        self._faults = itertools.chain(faults, itertools.repeat(then))
        self._models = models
        self._models_fault = models_fault
        self._key = key
        self._piece = piece
        self._retry_after = retry_after

    def routes(self) -> Iterable[web.RouteDef]:
        """See `LoopbackServer.routes`."""
        return [web.post("/v1/chat/completions", self._chat), web.get("/v1/models", self._list)]

    @property
    def url(self) -> str:
        """The base URL, ending in `/v1`."""
        return f"{self.origin}/v1"

    async def _list(self, request: web.Request) -> web.StreamResponse:
        refused = await self._refuse(request, self._models_fault)
        if refused is not None:
            return refused
        if self._models is None:
            return _error(404, "no such path")
        listed = [{"id": name, "object": "model"} for name in self._models]
        return web.json_response({"object": "list", "data": listed})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(json.loads(await request.read()), dict(request.headers))
        self.requests.append(seen)
        self.asked.set()
        try:
            return await self._answer(request, seen.body, next(self._faults))
        except (anyio.get_cancelled_exc_class(), ConnectionError):
            seen.disconnected = True
            raise
        finally:
            seen.finished.set()

    async def _answer(
        self, request: web.Request, body: Mapping[str, Any], fault: Fault
    ) -> web.StreamResponse:
        refused = await self._refuse(request, fault)
        if refused is not None:
            return refused
        if fault == "no-choices":
            return web.json_response({"object": "chat.completion", "choices": []})
        if fault == "error-in-reply":
            return web.json_response({"error": {"message": "upstream is down", "code": 502}})
        reply = next(self._replies)
        message = {**reply.message, "content": None} if fault == "null-content" else reply.message
        finish = None if fault == "no-finish" else reply.finish_reason
        usage = reply.usage or Usage()
        counted = {**usage.model_dump(), "total_tokens": usage.prompt_tokens + usage.completion_tokens}
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response(
                {**head, "object": "chat.completion", "choices": [choice], "usage": counted}
            )
        return await self._stream(request, body, fault, head, message, finish, counted)

    async def _stream(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        fault: Fault,
        head: Mapping[str, Any],
        message: Mapping[str, Any],
        finish: str | None,
        usage: Mapping[str, int],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(**more: Any) -> None:
            data = {**head, "object": "chat.completion.chunk", **more}
            await response.write(f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode())

        for number, delta in enumerate(cut(message, self._piece)):
            await send(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
            if number != (0 if fault.endswith("-early") else 1):  # piece 0 names the role only
                continue
            if fault.startswith("broken-stream") and request.transport is not None:
                request.transport.abort()
                return response
            if fault.startswith("error-event"):
                await response.write(b'data: {"error": {"message": "the model crashed", "code": 500}}\n\n')
                return response
            if fault == "garbage-event":
                await response.write(b"data: {not json\n\n")
                return response
            if fault == "hang-in-stream":
                await anyio.sleep_forever()
        await send(choices=[{"index": 0, "delta": {}, "finish_reason": finish}])
        if (body.get("stream_options") or {}).get("include_usage"):
            await send(choices=[], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _refuse(self, request: web.Request, fault: Fault) -> web.StreamResponse | None:
        offered = request.headers.get("Authorization", "")
        if self._key is not None and offered != f"Bearer {self._key}":
            return _error(401, f"Incorrect API key provided: {offered}")
        if fault == "html":
            return web.Response(text="<!doctype html><title>Welcome</title>", content_type="text/html")
        if fault == "not-json":
            return web.Response(text="hello {", content_type="application/json")
        if fault == "redirect":
            return web.Response(status=308, headers={"Location": "https://elsewhere.invalid/v1"})
        if fault == "401":
            return _error(401, f"Incorrect API key provided: {offered}")
        if fault == "429":
            headers = {} if self._retry_after is None else {"Retry-After": self._retry_after}
            return _error(429, "slow down", headers)
        if fault == "400":
            return _error(400, "This model's maximum context length is 8192 tokens")
        if fault in ("403", "404", "413", "500"):
            return _error(int(fault), f"scripted {fault}")
        if fault == "hang":
            await anyio.sleep_forever()
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
            return web.Response()  # is never sent
        return None


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": "scripted", "param": None, "code": None}
    return web.json_response({"error": error}, status=status, headers=headers)
