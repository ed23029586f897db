"""What stands between the engine `vllm` and its server in tests: a proxy that observes.

It records what was sampled without code of swe-core in between, as the reference for it.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
from aiohttp import web

from swe_core.system.http_server import serve


@dataclass
class Call:
    """A completion as the server gave it, or what was passed on of it."""

    body: dict[str, Any]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self.body["prompt"]
        return ids

    @property
    def is_probe(self) -> bool:
        """Whether it asks how the server answers, before any rollout."""
        return bool(self.body.get("logprobs") or self.body.get("ignore_eos"))


class ObservingProxy:
    """An async context manager: what it is asked at `url` the server at `upstream` answers.

    `calls` are the completions so far, in the order in which they were asked for.
    """

    def __init__(self, upstream: str) -> None:
        self.calls: list[Call] = []
        self.url = ""
        self._upstream = upstream
        self._asked = anyio.Condition()
        self._open = AsyncExitStack()

    async def asked(self, count: int) -> None:
        """Wait until there were `count` calls of rollouts."""
        async with self._asked:
            while len(self.sampled) < count:
                await self._asked.wait()

    @property
    def sampled(self) -> list[Call]:
        """The calls of rollouts."""
        return [call for call in self.calls if not call.is_probe]

    async def __aenter__(self) -> ObservingProxy:
        self._session = await self._open.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        self.url = await self._open.enter_async_context(serve(runner))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        call = Call(json.loads(body)) if request.path == "/v1/completions" else None
        if call is not None:
            self.calls.append(call)
            async with self._asked:
                self._asked.notify_all()
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        url = self._upstream + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            reply = web.StreamResponse(status=answer.status)
            reply.content_type = answer.content_type
            await reply.prepare(request)
            rest = b""
            async for data in answer.content.iter_any():
                if call is not None:
                    *lines, rest = (rest + data).split(b"\n")
                    _note(call, lines)
                await reply.write(data)
            if call is not None:
                _note(call, [rest])
            await reply.write_eof()
            return reply


def _note(call: Call, lines: list[bytes]) -> None:
    """Take in lines of an event stream, or a whole body, which is one line."""
    for line in lines:
        text = line.removeprefix(b"data:").strip()
        if not text.startswith(b"{"):
            continue
        for choice in json.loads(text).get("choices", ()):
            call.ids += choice["token_ids"]
            call.logprobs += choice["logprobs"]["token_logprobs"]
            call.finish_reason = choice["finish_reason"]
