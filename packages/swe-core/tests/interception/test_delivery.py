"""Undelivered replies: dropped in memory and on disk, unless a later call continues them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from aiohttp import web

from swe_core.api.chain import Chain
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Sampled
from swe_core.api.records import Ledger
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_core.interception.sse import EventStream
from swe_core.report.token_audit import recount
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.chains import chains_of
from swe_testing.records import make_run
from swe_testing.waiting import until

from .helpers import HELLO, by_hand, sampled, who

pytestmark = pytest.mark.anyio
HUGE = 16 * 1024 * 1024
"""Characters of a reply that fills every socket buffer while the client does not read."""


class Saying(Engine):
    """Says "abc" to the first call and a letter more to each further one, each letter a token.

    Args:
        size: How often its message repeats that.
    """

    model = "saying"

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.said: list[Sampled] = []

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        text = "abc" + "d" * len(self.said)
        turns = sum(message["role"] == "assistant" for message in request.messages)
        base = self.said[turns - 1] if turns else None
        self.said.append(sampled(text, extends=base))
        if emit is not None:
            await emit({"content": text[:1]})
        content = text * self.size
        return Completion({"role": "assistant", "content": content}, sampled=self.said[-1])


class Silent(Saying):
    """Sends no piece before the end."""

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        return await super().complete(request, session)


class Kept:
    """One rollout's gate, and what is on disk of it once it is closed."""

    def __init__(self, run: RunDirectory, engine: Engine, gate: Gate) -> None:
        self.gate = gate
        self.engine = engine
        self._run = run

    @property
    def ledger(self) -> Ledger:
        """The same from memory and from disk."""
        ledger = self.gate.ledger()
        assert ledger is not None
        assert recount(self._run.turns("r1")) == ledger
        return ledger

    @property
    def chains(self) -> list[Chain]:
        """The same from memory and from disk."""
        chains, stored = self.gate.chains(), chains_of(self._run.turns("r1"))
        assert [(one.turns, one.cause, one.input_ids.tolist()) for one in chains] == [
            (one.turns, one.cause, one.input_ids.tolist()) for one in stored
        ]
        return chains


@asynccontextmanager
async def rollout(path: Path, server: InterceptionServer, engine: Engine) -> AsyncIterator[Kept]:
    run = make_run(path / "run")
    folder = run.folder("r1")
    async with server.session(engine, who(), folder.add_turn, on_undelivered=folder.add_undelivered) as gate:
        yield Kept(run, engine, gate)
    folder.close()


def broken(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Break the connection before the last event of a stream, `times` times."""
    end, left = EventStream.end, times

    async def breaking(self: EventStream, data: bytes) -> web.StreamResponse:
        nonlocal left
        if left:
            left -= 1
            raise ConnectionResetError("the client is gone")
        return await end(self, data)

    monkeypatch.setattr(EventStream, "end", breaking)


async def ask(http: httpx.AsyncClient, *said: str, **headers: str) -> str:
    """Request a stream after the replies `said` and return the text received."""
    messages: list[Any] = [*HELLO]
    for text in said:
        messages += [{"role": "assistant", "content": text}, *HELLO]
    text = ""
    body = {"messages": messages, "stream": True}
    try:
        async with http.stream("POST", "/chat/completions", json=body, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    except httpx.RemoteProtocolError:
        pass
    return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
async def test_disconnect_before_delivery_drops_the_reply(
    server: InterceptionServer, tmp_path: Path, stream: bool
) -> None:
    """The client has part of the reply: it disconnects after the call has ended."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"messages": HELLO, "stream": stream}).encode()
    engine = Silent(HUGE)
    async with rollout(tmp_path, server, engine) as kept:
        gate = kept.gate
        async with await anyio.connect_tcp(host, int(port)) as client:
            await client.send(
                f"POST {gate.path}/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
                f"Authorization: Bearer {gate.token}\r\n\r\n".encode()
                + body
            )
            await client.receive(1)
        await until(lambda: b"swe_dropped_connections_total 1.0" in server._metrics.text())
        assert gate.turns == 1
    assert (kept.ledger.sampled, kept.ledger.trainable, kept.ledger.dropped) == (3, 0, {"undelivered": 3})
    assert kept.chains == []


async def test_unterminated_reply_is_dropped_unless_continued(
    server: InterceptionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, 2)
    async with rollout(tmp_path, server, Saying()) as kept, by_hand(server, kept.gate) as http:
        assert await ask(http) == "a"
        assert await ask(http, "abc") == "a"  # the agent took the first one for whole
    assert kept.ledger.dropped == {"undelivered": 4}
    (chain,) = kept.chains
    assert chain.turns == (0,)


async def test_next_reply_replaces_undelivered_one(
    server: InterceptionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second continuation is not a branch if the first was lost."""
    async with rollout(tmp_path, server, Saying()) as kept, by_hand(server, kept.gate) as http:
        await ask(http)
        broken(monkeypatch, 1)
        await ask(http, "abc")
        monkeypatch.undo()
        body = {"messages": [*HELLO, {"role": "assistant", "content": "abc"}, *HELLO], "seed": 1}
        await http.post("/chat/completions", json=body)
    assert kept.ledger.dropped == {"undelivered": 4}
    assert kept.ledger.forks == {}
    (chain,) = kept.chains
    assert chain.turns == (0, 2)


@pytest.mark.parametrize("headers", [{}, {"x-stainless-retry-count": "1"}])
async def test_retry_delivers_the_reply(
    server: InterceptionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    broken(monkeypatch, 1)
    async with rollout(tmp_path, server, Saying()) as kept, by_hand(server, kept.gate) as http:
        await ask(http)
        assert await ask(http, **headers) == "abc"
        assert kept.gate.turns == 1
    assert (kept.ledger.trainable, kept.ledger.dropped) == (3, {})


async def test_unrecordable_delivery_fails_the_rollout(
    server: InterceptionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(indices: object) -> None:
        raise OSError(28, "No space left on device")

    broken(monkeypatch, 1)
    async with server.session(Saying(), who(), lambda _: None, on_undelivered=full) as gate:
        async with by_hand(server, gate) as http:
            await ask(http)
    assert "undelivered replies could not be recorded: OSError" in str(gate.failure)
