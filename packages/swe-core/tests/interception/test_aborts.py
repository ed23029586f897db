"""Clients that leave and rollouts that end while a call is in flight."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import httpx
import pytest

from swe_core.api.engine import ChatRequest, Completion
from swe_core.api.records import Turn
from swe_core.interception.calls import OVER
from swe_core.interception.gate import GONE, Gate
from swe_core.interception.server import InterceptionServer
from swe_testing.provider import Fault, ScriptedProvider, say
from swe_testing.waiting import until

from .helpers import HELLO, Plugin, Typist, by_hand, relay, sampled, talk, who

CALLS = pytest.mark.parametrize(
    ("stream", "fault"), [(False, "hang"), (True, "hang"), (True, "hang-in-stream")]
)


@CALLS
async def test_disconnect_aborts_generation(server: InterceptionServer, stream: bool, fault: Fault) -> None:
    async with ScriptedProvider(then=fault) as provider, relay(provider) as engine:
        async with talk(server, engine) as said:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: said.ask(stream=stream))
                with anyio.fail_after(120):
                    await provider.asked.wait()
                group.cancel_scope.cancel()
            with anyio.fail_after(120):
                await provider.requests[0].finished.wait()
            await until(lambda: bool(said.turns))
            assert provider.requests[0].disconnected
            assert said.gate.failure is None
    assert [turn.error for turn in said.turns] == [GONE]


@CALLS
async def test_left_session_aborts_calls(server: InterceptionServer, stream: bool, fault: Fault) -> None:
    turns: list[Turn] = []
    responses: list[httpx.Response] = []
    async with ScriptedProvider(then=fault) as provider, relay(provider) as engine:
        async with anyio.create_task_group() as group:
            async with server.session(engine, who(), turns.append) as gate:

                async def ask(number: int) -> None:
                    async with by_hand(server, gate) as http:
                        body = {"messages": HELLO, "stream": stream, "seed": number}
                        responses.append(await http.post("/chat/completions", json=body))

                for number in range(3):
                    group.start_soon(ask, number)
                await until(lambda: len(provider.requests) == 3)
            assert [turn.error for turn in turns] == [OVER] * 3  # on leaving, not some time later
        with anyio.fail_after(120):
            for seen in provider.requests:
                await seen.finished.wait()
    assert all(seen.disconnected for seen in provider.requests)
    assert len(responses) == 3
    for response in responses:
        # A stream whose first bytes are out has its status; it ends with an error event.
        assert response.status_code in ((200, 410) if stream else (410,))
        assert OVER in response.text


async def test_body_completed_after_the_rollout_is_rejected(server: InterceptionServer) -> None:
    """The token is valid when the request begins; the engine is not called."""
    engine = Plugin(Completion(message={"role": "assistant", "content": "too late"}))
    body = json.dumps({"messages": HELLO}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    async with server.session(engine, who(), lambda _: None) as gate:
        head = (
            f"POST {gate.path}/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
            f"Authorization: Bearer {gate.token}\r\nContent-Length: {len(body)}\r\n"
            "Expect: 100-continue\r\n\r\n"
        )
        client = await anyio.connect_tcp(host, int(port))
        await client.send(head.encode())
        assert b"100 Continue" in await client.receive()  # the handler has begun
        await client.send(body[:10])
    async with client:
        await client.send(body[10:])
        answer = b"".join([chunk async for chunk in client])
    assert answer.startswith((b"HTTP/1.1 410", b"HTTP/1.1 401"))
    assert b"too late" not in answer
    assert gate.turns == 0


@pytest.mark.slow
async def test_clients_leave_nothing(server: InterceptionServer, caplog: pytest.LogCaptureFixture) -> None:
    """Forty rollouts with clients that leave at any moment, over a provider that fails in many ways."""
    random = Random(3)
    faults: list[Fault] = ["ok", "ok", "hang", "hang-in-stream", "broken-stream", "500", "drop", "html"]
    unlimited = httpx.Limits(max_connections=None)
    before = len(asyncio.all_tasks())
    async with ScriptedProvider([say("x" * 200)], faults=random.choices(faults, k=1000)) as provider:
        async with relay(provider, max_retries=1) as engine, httpx.AsyncClient(limits=unlimited) as client:

            async def misbehave(gate: Gate, patience: float, body: bytes, token: str) -> None:
                with anyio.move_on_after(patience), suppress(httpx.HTTPError):
                    url = f"{server.url}{gate.path}/chat/completions"
                    await client.post(url, content=body, headers={"Authorization": f"Bearer {token}"})

            async def rollout(number: int) -> None:
                plain, streamed = (
                    json.dumps({"messages": HELLO, "stream": stream}).encode() for stream in (False, True)
                )
                async with server.session(engine, who(str(number)), lambda _: None) as gate:
                    async with anyio.create_task_group() as group:
                        group.start_soon(misbehave, gate, math.inf, streamed, gate.token)
                        for _ in range(3):
                            body = random.choice([plain, plain, streamed, streamed, b"{"])
                            token = random.choice([gate.token, gate.token, gate.token, "wrong"])
                            group.start_soon(misbehave, gate, random.uniform(0, 2), body, token)
                        await provider.asked.wait()  # on a busy machine this takes longer than the rest
                        await anyio.sleep(random.uniform(0, 1))
                        group.cancel_scope.cancel()

            async with anyio.create_task_group() as group:
                for number in range(40):
                    group.start_soon(rollout, number)
        with anyio.fail_after(120):
            for seen in provider.requests:
                await seen.finished.wait()
    await until(lambda: len(asyncio.all_tasks()) <= before)  # closing connections end their tasks
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_reply_finished_after_all_clients_left_is_not_trained(server: InterceptionServer) -> None:
    """A repeated request gets another reply."""

    class Stubborn(Typist):
        async def complete(self, request: ChatRequest, session: Any, emit: Any = None) -> Completion:
            with suppress(anyio.get_cancelled_exc_class()):
                await super().complete(request, session, emit)
            return Completion({"role": "assistant", "content": "abcdef"}, sampled=sampled("abcdef"))

    engine = Stubborn(letters=2)
    async with talk(server, engine) as said:
        async with anyio.create_task_group() as group:
            group.start_soon(said.ask)
            await engine.typed.wait()
            group.cancel_scope.cancel()
        await until(lambda: bool(said.turns))
        engine.let(6)
        await said.ask()
        ledger = said.gate.ledger()
    assert [(turn.error, turn.reply is None) for turn in said.turns] == [(GONE, True), (None, False)]
    assert ledger is not None
    assert (ledger.sampled, ledger.trainable, ledger.dropped) == (12, 6, {"aborted": 6})
