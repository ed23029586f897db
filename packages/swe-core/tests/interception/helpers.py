"""What the tests of the interception server share: clients, engines and a provider's relay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from swe_core.api.deltas import cut
from swe_core.api.engine import ChatRequest, Completion, Engine, EngineSession, Sampled, Usage
from swe_core.api.messages import Message
from swe_core.api.records import Turn
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.errors import EngineUnavailable
from swe_core.interception.dialects.base import Dialect
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_core.interception.sse import EventStream
from swe_testing.provider import ScriptedProvider

from ..token_turns import make_sampled

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY = "sk-do-not-show-this-0123456789"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
]


def who(rollout: str = "r1", task: str = "t") -> EngineSession:
    return EngineSession(rollout, task, 0, "a")


def relay(provider: ScriptedProvider, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(OpenAIConfig(url=provider.url, model="scripted", **{"max_retries": 2, **settings}))


def sdk(server: InterceptionServer, gate: Gate, **settings: Any) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token, **settings)


def root(server: InterceptionServer, gate: Gate) -> str:
    """Return the rollout's URL, which dialects other than OpenAI's take as base."""
    return server.url + gate.path.removesuffix("/v1")


@asynccontextmanager
async def by_hand(server: InterceptionServer, gate: Gate) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {gate.token}"}
    async with httpx.AsyncClient(base_url=server.url + gate.path, headers=headers, timeout=60) as client:
        yield client


@dataclass(frozen=True)
class Talk:
    """One rollout: its gate, the turns recorded so far, and a client."""

    gate: Gate
    http: httpx.AsyncClient
    turns: list[Turn]

    async def ask(self, number: int = 0, **fields: Any) -> httpx.Response:
        """Send a chat completion, another one for each number."""
        messages = [*HELLO, {"role": "user", "content": str(number)}]
        return await self.http.post("/chat/completions", json={"messages": messages, **fields})


@asynccontextmanager
async def talk(server: InterceptionServer, engine: Engine, *args: Any, **more: Any) -> AsyncIterator[Talk]:
    """Open a rollout of `engine`; the rest is for `InterceptionServer.session`."""
    turns: list[Turn] = []
    async with server.session(engine, who(), turns.append, *args, **more) as gate:
        async with by_hand(server, gate) as http:
            yield Talk(gate, http, turns)


async def stream(client: AsyncOpenAI, **more: Any) -> tuple[str, str | None, Any]:
    """Text, finish reason and usage of a streamed reply, through the SDK."""
    text, finish, usage = "", None, None
    async for chunk in await client.chat.completions.create(
        model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}, **more
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish, usage


def events_of(raw: bytes, dialect: Dialect) -> list[Any]:
    """Return the data of server-sent events without keepalives; of an event without data, its text."""
    found = []
    for block in filter(None, map(str.lstrip, raw.decode().split("\n\n")[:-1])):
        # Google's SDKs end a line at more characters; others have the type of an event before its data.
        *name, line = block.splitlines() if dialect.name == "google" else block.split("\n")
        data = line.removeprefix("data: ")
        if line.startswith(":") or name == ["event: ping"]:
            continue
        event = json.loads(data) if data != line and data != "[DONE]" else data
        assert name == ([f"event: {event['type']}"] if name else [])
        found.append(event)
    return found


class Plugin(Engine):
    """An engine that does not stream: returns or raises `reply`, and records the rollouts it ended."""

    model = "plugin"

    def __init__(self, reply: Completion | Exception) -> None:
        self.reply = reply
        self.ended: list[str] = []

    async def complete(self, request: ChatRequest, session: EngineSession, emit: Any = None) -> Completion:
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    async def end(self, session: EngineSession) -> None:
        self.ended.append(session.rollout_id)


class Script(Plugin):
    """Gives its replies in turn, each in pieces where a stream is requested, and keeps the requests."""

    def __init__(self, *replies: Message | Exception, counts: int | None = None) -> None:
        super().__init__(Completion({}))
        self.replies = list(replies)
        self.requests: list[ChatRequest] = []
        self.counts = counts

    async def complete(self, request: ChatRequest, session: EngineSession, emit: Any = None) -> Completion:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if emit is not None:
            for piece in cut(reply, 3):
                await emit(piece)
        finish = "tool_calls" if reply.get("tool_calls") else "stop"
        return Completion(reply, finish, Usage(prompt_tokens=7, completion_tokens=9))

    async def count_tokens(self, request: ChatRequest, session: EngineSession) -> int | None:
        self.requests.append(request)
        return self.counts


def fails_after_a_piece(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Return an engine that fails as soon as the client has been sent the piece `half`."""
    sent = anyio.Event()
    send = EventStream.send

    async def watched(self: EventStream, data: bytes) -> None:
        await send(self, data)
        sent.set()

    class Broken(Script):
        async def complete(self, request: ChatRequest, session: Any, emit: Any = None) -> Completion:
            await emit({"content": "half"})
            await sent.wait()
            raise EngineUnavailable("it is down")

    monkeypatch.setattr(EventStream, "send", watched)
    return Broken()


def sampled(text: str, **more: Any) -> Sampled:
    """Return the tokens of a reply: one id per character."""
    return make_sampled([], list(text.encode("ascii")), **more)


class Typist(Engine):
    """Owns its tokens, one per letter, and streams a reply letter by letter, as many as `let` allows."""

    model = "typist"
    limits_context = True

    def __init__(self, text: str = "abcdef", letters: int | None = None) -> None:
        self.text = text
        self.asked: list[ChatRequest] = []
        self.typed = anyio.Event()
        self.aborted = 0
        self._may = anyio.Semaphore(len(text) * 1000 if letters is None else letters)

    def let(self, letters: int) -> None:
        """Allow it to type more."""
        for _ in range(letters):
            self._may.release()

    async def complete(self, request: ChatRequest, session: EngineSession, emit: Any = None) -> Completion:
        self.asked.append(request)
        text = self.text[: request.max_tokens]
        try:
            for end in range(1, len(text) + 1):
                await self._may.acquire()
                request.progress.sampled = sampled(text[:end])
                if emit is not None:
                    await emit({"content": text[end - 1]})
                self.typed.set()
        except anyio.get_cancelled_exc_class():
            self.aborted += 1
            raise
        return Completion(
            message={"role": "assistant", "content": text},
            finish_reason="stop" if text == self.text else "length",
            usage=Usage(prompt_tokens=0, completion_tokens=len(text)),
            sampled=request.progress.sampled,
        )
