"""Counts of tokens: no turn, no budget, one at a time for a rollout."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from swe_core.api.engine import ChatRequest
from swe_core.api.limits import Budgets
from swe_core.interception.server import InterceptionServer
from swe_testing.waiting import until

from .helpers import Typist, who

pytestmark = pytest.mark.anyio
BODY = {"model": "m", "messages": [{"role": "user", "content": "word " * 100}]}


class Counting(Typist):
    """Counts words, one count at a time as `go` allows."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = self.most = 0
        self.go = anyio.Event()

    async def count_tokens(self, request: ChatRequest) -> int:
        self.counting += 1
        self.most = max(self.most, self.counting)
        await self.go.wait()
        self.counting -= 1
        return len(request.messages[0]["content"].split())


async def count(client: httpx.AsyncClient, url: str, token: str, answers: list[Any]) -> None:
    reply = await client.post(f"{url}/messages/count_tokens", json=BODY, headers={"x-api-key": token})
    answers.append((reply.status_code, reply.json()))


async def test_counts_of_a_rollout_run_one_at_a_time_and_are_no_turns(server: InterceptionServer) -> None:
    engine, answers = Counting(), list[Any]()
    async with server.session(engine, who(), lambda _: None, Budgets(turns=1)) as gate:
        async with httpx.AsyncClient(timeout=60) as client, anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(count, client, server.url + gate.path, gate.token, answers)
            await until(lambda: gate._counting.statistics().tasks_waiting == 4)
            engine.go.set()
    assert answers == [(200, {"input_tokens": 100})] * 5
    assert engine.most == 1
    assert (gate.turns, gate.ended_by, gate.called.is_set()) == (0, None, False)


async def test_count_of_an_engine_that_cannot_count_is_an_estimate(server: InterceptionServer) -> None:
    answers = list[Any]()
    async with server.session(Typist(), who(), lambda _: None) as gate, httpx.AsyncClient() as client:
        await count(client, server.url + gate.path, gate.token, answers)
    ((status, body),) = answers
    assert status == 200
    assert 100 <= body["input_tokens"] <= 200, "a token has some four characters"
