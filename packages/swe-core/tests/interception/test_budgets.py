"""Budgets: what the agent gets, what the engine may sample, and what is recorded; counts use none."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.engine import ChatRequest, Completion, EngineSession
from swe_core.api.limits import Budgets
from swe_core.errors import ContextOverflow
from swe_core.interception.budgets import RemainingBudget
from swe_core.interception.gate import SPENT
from swe_core.interception.server import InterceptionServer
from swe_testing.waiting import until

from .helpers import Plugin, Typist, talk


def is_title(request: ChatRequest) -> str | None:
    return "title" if "title" in request.body else None


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_over_the_turns_budget_end_an_agent(server: InterceptionServer, stream: bool) -> None:
    engine = Typist()
    async with talk(server, engine, Budgets(turns=2)) as said:
        replies = [await said.ask(number, stream=stream) for number in range(2)]
        assert said.gate.ended_by is None
        replies.append(await said.ask(2, stream=stream))
        with anyio.fail_after(120):
            await said.gate.ending()
    assert [reply.status_code for reply in replies] == [200] * 3
    assert SPENT not in replies[1].text
    assert SPENT in replies[2].text
    assert '"finish_reason":"stop"' in replies[2].text
    assert "tool_calls" not in replies[2].text
    assert said.gate.ended_by == "turns"
    assert len(engine.asked) == said.gate.turns == len(said.turns) == 2


async def test_auxiliary_call_is_dropped_for_its_reason_and_is_no_turn(server: InterceptionServer) -> None:
    engine = Typist()
    async with talk(server, engine, Budgets(turns=2), auxiliary=is_title) as said:
        replies = [await said.ask(number, **more) for number, more in enumerate(({}, {"title": 1}, {}))]
        ledger = said.gate.ledger()
    assert [reply.json()["choices"][0]["message"]["content"] for reply in replies] == [engine.text] * 3
    assert [(turn.auxiliary, turn.tokens and turn.tokens.dropped) for turn in said.turns] == [
        (None, None),
        ("title", "title"),
        (None, None),
    ]
    assert ledger is not None
    assert ledger.dropped == {"title": ledger.sampled // 3}
    assert ledger.trainable == 2 * ledger.sampled // 3


async def test_reason_of_the_last_reply_is_that_of_the_policys_work(server: InterceptionServer) -> None:
    """A title that a limit cut does not make a cut rollout."""
    message = {"role": "assistant", "content": ""}
    engine = Plugin(Completion(message))
    async with talk(server, engine, auxiliary=is_title) as said:
        found = [said.gate.finish_reason]
        for reason, more in (("length", {}), ("stop", {}), ("length", {"title": 1})):
            engine.reply = Completion(message, reason)
            await said.ask(len(found), **more)
            found.append(said.gate.finish_reason)
    assert found == [None, "length", "stop", "stop"]


async def test_auxiliary_calls_without_end_spend_the_budget(server: InterceptionServer) -> None:
    engine = Typist()
    async with talk(server, engine, Budgets(turns=2), auxiliary=lambda request: "title") as said:
        for number in range(12):
            await said.ask(number)
    assert (len(engine.asked), said.gate.ended_by) == (8, "turns")


async def test_remaining_completion_tokens_bound_each_call(server: InterceptionServer) -> None:
    engine = Typist()
    async with talk(server, engine, Budgets(completion_tokens=10, context=99)) as said:
        for number, limits in enumerate([{"max_tokens": 100}, {"max_completion_tokens": 3}, {}, {}]):
            await said.ask(number, **limits)
    assert [request.max_tokens for request in engine.asked] == [10, 3, 1]
    assert {request.max_context for request in engine.asked} == {99}
    assert said.gate.usage.completion_tokens == 10
    assert said.gate.ended_by == "completion_tokens"
    assert [turn.finish_reason for turn in said.turns] == ["stop", "length", "length"]


async def test_reply_cut_by_the_budget_ends_the_rollout(server: InterceptionServer) -> None:
    """The agent may exit without a further request. Its own limit ends nothing."""
    own = ({"max_tokens": 2}, Budgets(turns=1, completion_tokens=9), None)
    for limit, budgets, ended_by in (({}, Budgets(completion_tokens=2), "completion_tokens"), own):
        async with talk(server, Typist(), budgets) as said:
            assert '"finish_reason":"length"' in (await said.ask(**limit)).text
        assert said.gate.ended_by == ended_by


@pytest.mark.parametrize("stream", [False, True])
async def test_wall_budget_cuts_a_call_and_keeps_its_text(server: InterceptionServer, stream: bool) -> None:
    for wall in (0.3, 3, 30):  # more, if a busy machine has not typed both letters by then
        async with talk(server, Typist(letters=2), Budgets(wall=wall)) as said:
            said.gate.start()
            reply, over = [await said.ask(number, stream=stream) for number in range(2)]
            ledger = said.gate.ledger()
        if said.gate.usage.completion_tokens == 2:
            break
    assert reply.status_code == 200
    assert '"finish_reason":"length"' in reply.text
    assert SPENT in over.text
    if stream:
        assert reply.text.index('"content":"a"') < reply.text.index('"content":"b"')
    (turn,) = said.turns
    assert turn.tokens is not None
    assert (turn.tokens.dropped, turn.tokens.completion) == ("wall", [97, 98])
    assert turn.reply == {"role": "assistant", "content": "ab" if stream else ""}
    assert (turn.finish_reason, turn.error) == ("length", None)
    assert turn.usage.completion_tokens == 2
    assert said.gate.ended_by == "wall"
    assert ledger is not None
    assert (ledger.sampled, ledger.trainable, ledger.dropped) == (2, 0, {"wall": 2})


async def test_wall_budget_ends_a_silent_agent(server: InterceptionServer) -> None:
    async with talk(server, Typist(), Budgets(wall=0.01)) as said:
        said.gate.start()
        with anyio.fail_after(120):
            await said.gate.ending()
    assert said.gate.ended_by == "wall"


async def test_overflow_has_the_openai_code_and_is_recoverable(server: InterceptionServer) -> None:
    engine = Plugin(ContextOverflow(9000, 8192))
    async with talk(server, engine) as said:
        reply = await said.ask(0)
        assert said.gate.ended_by == "context"
        engine.reply = Completion({"role": "assistant", "content": "compacted"})
        assert (await said.ask(1)).status_code == 200
        assert said.gate.ended_by is None
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in error["message"]


@pytest.mark.parametrize("overflowed", [True, False])
async def test_auxiliary_call_does_not_end_a_rollout(overflowed: bool, server: InterceptionServer) -> None:
    fits, overflow = Completion({"role": "assistant", "content": ""}), ContextOverflow(9000, 8192)
    engine = Plugin(fits)
    async with talk(server, engine, auxiliary=is_title) as said:
        for number, overflows in enumerate((overflowed, not overflowed)):
            engine.reply = overflow if overflows else fits
            await said.ask(number, **({"title": 1} if number else {}))
    assert said.gate.ended_by == ("context" if overflowed else None)


async def test_tokens_of_an_aborted_call_use_the_budget(server: InterceptionServer) -> None:
    engine = Typist(letters=4)
    async with talk(server, engine, Budgets(completion_tokens=10)) as said:
        async with anyio.create_task_group() as group:
            group.start_soon(said.ask, 0)
            await until(lambda: said.gate._allowance.left == 10 and engine.typed.is_set())
            group.cancel_scope.cancel()
        await until(lambda: bool(said.turns))
        engine.let(100)
        await said.ask(1)
    assert said.turns[0].usage.completion_tokens > 0
    assert engine.asked[1].max_tokens == 10 - said.turns[0].usage.completion_tokens


async def test_concurrent_calls_share_the_completion_tokens(server: InterceptionServer) -> None:
    engine, finished = Typist(letters=0), list[str]()
    async with talk(server, engine, Budgets(completion_tokens=10)) as said:
        async with anyio.create_task_group() as group:

            async def ask(number: int, **more: Any) -> None:
                finished.append((await said.ask(number, **more)).json()["choices"][0]["message"]["content"])

            group.start_soon(lambda: ask(0, max_tokens=7))
            await until(lambda: len(engine.asked) == 1)
            group.start_soon(ask, 1)
            await until(lambda: len(engine.asked) == 2)
            await ask(2)  # the others hold all that is left, which is no end
            assert finished == [SPENT]
            assert said.gate.ended_by is None
            engine.let(100)
            await until(lambda: len(finished) == 3)
            await ask(3)  # the first one has used six of its seven
            await ask(4)
    assert [request.max_tokens for request in engine.asked] == [7, 3, 1]
    assert said.gate.usage.completion_tokens == 10
    assert said.gate.ended_by == "completion_tokens"


@given(
    budget=st.integers(1, 100),
    calls=st.lists(st.tuples(st.none() | st.integers(1, 60), st.floats(0, 1), st.integers(0, 5))),
)
def test_no_order_of_calls_uses_more_tokens(budget: int, calls: list[tuple[int | None, float, int]]) -> None:
    """Each call samples part of its grant and ends after some later calls have begun."""
    allowance = RemainingBudget(Budgets(completion_tokens=budget))
    used, running = 0, list[tuple[int, float]]()
    for wanted, part, at_once in calls:
        granted = allowance.begin(wanted)
        assert granted is not None
        running.append((granted, part))
        while len(running) > at_once:
            granted, part = running.pop(0)
            used += round(granted * part)
            allowance.end(granted, round(granted * part))
        assert used + sum(granted for granted, _ in running) <= budget
        assert allowance.left == budget - used


class Counting(Typist):
    """Counts words, one count at a time as `go` allows."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = self.most = 0
        self.go = anyio.Event()

    async def count_tokens(self, request: ChatRequest, session: EngineSession) -> int:
        self.counting += 1
        self.most = max(self.most, self.counting)
        await self.go.wait()
        self.counting -= 1
        return len(request.messages[0]["content"].split())


async def test_counts_of_a_rollout_run_one_at_a_time_and_are_no_turns(server: InterceptionServer) -> None:
    engine, answers = Counting(), list[Any]()
    async with talk(server, engine, Budgets(turns=1)) as said, anyio.create_task_group() as group:

        async def count() -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": "word " * 100}]}
            reply = await said.http.post("/messages/count_tokens", json=body)
            answers.append((reply.status_code, reply.json()))

        for _ in range(5):
            group.start_soon(count)
        await until(lambda: said.gate._counting.statistics().tasks_waiting == 4)
        engine.go.set()
    assert answers == [(200, {"input_tokens": 100})] * 5
    assert engine.most == 1
    assert (said.gate.turns, said.gate.ended_by, said.gate.called.is_set()) == (0, None, False)
