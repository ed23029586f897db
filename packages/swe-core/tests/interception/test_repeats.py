"""Repeated requests: they get the same reply, and nothing is sampled twice."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession
from swe_core.api.records import Turn
from swe_core.errors import RequestRefused
from swe_core.interception.calls import Call, Calls
from swe_core.interception.server import InterceptionServer
from swe_testing.waiting import until

from .helpers import HELLO, Plugin, Typist, by_hand, who

pytestmark = pytest.mark.anyio


def _text(response: httpx.Response) -> str:
    """The text of a reply, streamed or not."""
    if response.headers["content-type"] == "application/json":
        return str(response.json()["choices"][0]["message"]["content"])
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(
        choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_repeated_request_joins_the_call_in_flight(server: InterceptionServer, stream: bool) -> None:
    engine, turns, replies = Typist(letters=3), list[Turn](), list[httpx.Response]()
    body = {"messages": HELLO, "stream": stream}
    async with server.session(engine, who(), turns.append) as gate, by_hand(server, gate) as http:

        async def ask() -> None:
            replies.append(await http.post("/chat/completions", json=body))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await engine.typed.wait()
            group.start_soon(ask)
            await until(lambda: b"swe_replays_total 1.0" in server._metrics.text())
            engine.let(3)
        assert gate.turns == len(turns) == 1
    assert [_text(reply) for reply in replies] == ["abcdef"] * 2
    assert len(engine.asked) == 1


async def test_one_of_two_listeners_may_leave(server: InterceptionServer) -> None:
    engine, replies = Typist(letters=1), list[httpx.Response]()
    body = {"messages": HELLO, "stream": True}
    async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
        async with anyio.create_task_group() as group:

            async def leave(scope: anyio.CancelScope) -> None:
                with scope:
                    await http.post("/chat/completions", json=body)

            async def stay() -> None:
                replies.append(await http.post("/chat/completions", json=body))

            scope = anyio.CancelScope()
            group.start_soon(leave, scope)
            await engine.typed.wait()
            group.start_soon(stay)
            await until(lambda: b"swe_replays_total 1.0" in server._metrics.text())
            scope.cancel()
            await until(lambda: b"swe_dropped_connections_total 1.0" in server._metrics.text())
            engine.let(5)
    assert [_text(reply) for reply in replies] == ["abcdef"]
    assert engine.aborted == 0


async def test_repeat_after_an_abort_asks_again(server: InterceptionServer) -> None:
    engine, turns = Typist(letters=2), list[Turn]()
    body = {"messages": HELLO, "stream": True}
    async with server.session(engine, who(), turns.append) as gate, by_hand(server, gate) as http:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: http.post("/chat/completions", json=body))
            await engine.typed.wait()
            group.cancel_scope.cancel()
        await until(lambda: bool(turns))
        engine.let(6)
        retried = await http.post("/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})
        assert _text(retried) == "abcdef"
        ledger = gate.ledger()
    assert [turn.tokens.dropped if turn.tokens else None for turn in turns] == ["aborted", None]
    assert ledger is not None
    assert ledger.dropped == {"aborted": len(turns[0].tokens.completion if turns[0].tokens else [])}
    assert ledger.sampled == ledger.trainable + sum(ledger.dropped.values())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("headers", "again"),
    [({}, True), ({"x-stainless-retry-count": "0"}, True), ({"x-stainless-retry-count": "2"}, False)],
)
async def test_delivered_reply_is_replayed_for_declared_retries_only(
    server: InterceptionServer, stream: bool, headers: Any, again: bool
) -> None:
    """An agent that cannot use a reply sends the same request again and needs another reply."""
    engine, turns = Typist(), list[Turn]()
    async with server.session(engine, who(), turns.append) as gate, by_hand(server, gate) as http:
        body = {"messages": HELLO, "stream": stream}
        first = await http.post("/chat/completions", json=body)
        second = await http.post("/chat/completions", json=body, headers=headers)
        other = await http.post("/chat/completions", json={**body, "seed": 1}, headers=headers)
    assert {_text(reply) for reply in (first, second, other)} == {"abcdef"}
    assert len(engine.asked) == len(turns) == 2 + again


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": HELLO}),
        ("/responses", {"input": "hi"}),
        ("/messages", {"model": "m", "max_tokens": 99, "messages": HELLO}),
        ("/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
    ],
)
async def test_retry_in_every_dialect_is_not_sampled_again(
    server: InterceptionServer, path: str, body: dict[str, Any]
) -> None:
    """Neither one that comes while the first request is answered, nor one that comes later and says so."""
    engine, turns, replies = Typist(letters=3), list[Turn](), list[str]()
    async with server.session(engine, who(), turns.append) as gate, by_hand(server, gate) as http:

        async def ask(retries: int) -> None:
            headers = {"x-stainless-retry-count": str(retries)}
            replies.append((await http.post(path, json=body, headers=headers)).text)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, 0)
            await until(lambda: len(engine.asked) == 1)
            group.start_soon(ask, 1)
            await until(lambda: b"swe_replays_total 1.0" in server._metrics.text())
            engine.let(3)
        await ask(2)
    assert ["abcdef" in reply for reply in replies] == [True] * 3
    assert len(engine.asked) == len(turns) == 1


async def test_repeat_after_a_rejection_asks_again(server: InterceptionServer) -> None:
    class Refusing(Plugin):
        async def complete(
            self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
        ) -> Completion:
            reply, self.reply = self.reply, Completion({"role": "assistant", "content": "now"})
            if isinstance(reply, Exception):
                raise reply
            return reply

    engine = Refusing(RequestRefused("not now"))
    async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
        first = await http.post("/chat/completions", json={"messages": HELLO})
        second = await http.post("/chat/completions", json={"messages": HELLO})
    assert first.status_code == 400
    assert _text(second) == "now"


async def test_only_the_latest_finished_calls_are_kept() -> None:
    calls, completion = Calls(), Completion({"role": "assistant", "content": ""})
    keys = [bytes([number]) for number in range(50)]
    for number, key in enumerate(keys):
        call = Call()
        calls.add(key, call)
        if number > 0:  # the first one stays in flight
            call.end(completion)
    assert len(calls._calls) <= 10
    assert calls.find(keys[0], retried=False) is not None
    assert calls.find(keys[-1], retried=True) is not None
    assert calls.find(keys[1], retried=True) is None


async def test_undelivered_reply_is_replayed() -> None:
    calls, call = Calls(), Call()
    calls.add(b"key", call)
    call.end(Completion({"role": "assistant", "content": "said"}))
    assert calls.find(b"key", retried=False) is call
    call.delivered = True
    assert calls.find(b"key", retried=False) is None
    assert calls.find(b"key", retried=True) is call


async def test_abandoned_call_is_not_joined() -> None:
    """Its generation is being cancelled, so a new request must not wait for it."""
    calls, call = Calls(), Call()
    calls.add(b"key", call)
    with call.listen(), call.listen():
        assert calls.find(b"key", retried=True) is call
    assert calls.find(b"key", retried=True) is None
