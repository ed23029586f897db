"""The engine behind both capture servers, and how tests talk to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import orjson
from aiohttp import web

from swe_core.system.http_server import serve
from swe_core.tokens.renderer import Renderer
from swe_openenv.capture.server import CaptureOptions, capture
from swe_testing.vllm import ScriptedVLLM, logprob_of

MODEL = "scripted"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "bash", "description": "", "parameters": {"type": "object", "properties": {}}},
}
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@dataclass
class Qwen:
    """A model family's tokenizer."""

    path: Path
    renderer: Renderer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.renderer.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def server(self, *replies: Any, **settings: Any) -> VLLM:
        return VLLM(
            self.renderer,
            replies,
            encode=self.encode,
            stop_id=self.encode("<|im_end|>")[0],
            **{"root": str(self.path), **settings},
        )


class VLLM(ScriptedVLLM):
    """A scripted vLLM that answers chat completions too, as OpenEnv's server asks for them.

    Args:
        renderer: Renders each prompt whole, as vLLM does.
        port: Port to listen on; 0 selects a free one.

    Attributes:
        chats: The chat completions requests that arrived.
    """

    def __init__(self, renderer: Renderer, replies: Iterable[Any], port: int = 0, **settings: Any) -> None:
        super().__init__([*replies], **settings)
        self._port = port
        self.chats: list[dict[str, Any]] = []
        self._renderer = renderer

    async def __aenter__(self) -> Self:
        app = self.application()
        app.add_routes(self.routes())
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        self.origin = await self._open.enter_async_context(serve(runner, self._port))
        return self

    def routes(self) -> Iterable[web.RouteDef]:
        return [*super().routes(), web.post("/v1/chat/completions", self._chat)]

    async def _chat(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.chats.append(body)
        messages = [{**message, "content": message.get("content") or ""} for message in body["messages"]]
        prompt = self._renderer.render(messages, body.get("tools"))
        ids = self._ids(next(self._replies), prompt)
        parsed = self._renderer.parse(ids, prompt[-8:], body.get("tools"))
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
        if parsed.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (name, arguments, _) in enumerate(parsed.calls)
            ]
        entries = [{"token": f"token_id:{token}", "logprob": logprob_of(token)} for token in ids]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if parsed.calls else "stop",
            "token_ids": ids,
            "logprobs": {"content": entries},
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        usage["total_tokens"] = sum(usage.values())
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
        return web.json_response(
            {**whole, "choices": [choice], "usage": usage, "prompt_token_ids": [*prompt]}
        )


@asynccontextmanager
async def ours(engine: VLLM | None, out: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of our capture server in front of `engine`."""
    settings = options_of(engine, out, **options)
    async with capture(settings) as listening, httpx.AsyncClient(base_url=listening, timeout=60) as client:
        yield client


def options_of(engine: VLLM | None, out: Path, **options: Any) -> CaptureOptions:
    """The options of `ours`."""
    url = engine.url if engine is not None else ""
    return CaptureOptions(
        **{
            "llm_url": url,
            "model": MODEL if url else "",
            "port": 0,
            "out": out,
            "sets": ("engine.vllm.renderer=qwen3", "engine.vllm.max_retries=0"),
            **options,
        }
    )


@asynccontextmanager
async def theirs(engine: VLLM | None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of OpenEnv's capture server in front of `engine`."""
    from openenv.core.harness.capture.server import create_app

    app = create_app(llm_url=engine.url if engine else "", model=MODEL if engine else None, **options)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://theirs", timeout=60) as client:
        yield client
    if app.state.inference is not None:
        await app.state.inference.aclose()


async def session(client: httpx.AsyncClient, **body: Any) -> str:
    """Make a session and return its key."""
    made = await client.post("/sessions", json=body)
    assert made.status_code == 200, made.text
    key: str = made.json()["session_id"]
    return key


async def ask(
    client: httpx.AsyncClient, key: str, messages: list[dict[str, Any]] = HELLO, **body: Any
) -> dict[str, Any]:
    """Ask in chat completions and return the assistant message."""
    answer = await client.post(
        "/v1/chat/completions",
        json={"model": "any", "messages": messages, "tools": [TOOL], **body},
        headers=bearer(key),
    )
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


async def converse(client: httpx.AsyncClient, key: str, turns: int) -> list[dict[str, Any]]:
    """Ask as an agent with one tool does; return all messages."""
    messages = [*HELLO]
    for number in range(turns):
        reply = await ask(client, key, messages)
        messages.append(reply)
        for call in reply.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"file-{number}.py"})
    return messages


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def shape_of(value: Any) -> Any:
    """The keys and types of a JSON document."""
    if isinstance(value, Mapping):
        return {key: shape_of(one) for key, one in sorted(value.items())}
    if isinstance(value, list):
        return [json.loads(one) for one in sorted({json.dumps(shape_of(one)) for one in value})]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__
