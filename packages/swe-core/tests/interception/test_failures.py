"""Engines that fail: what the agent and the host get."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import anyio
import httpx
import pytest

from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession
from swe_core.api.limits import Budgets
from swe_core.api.records import Turn
from swe_core.errors import EngineError, EngineProtocolError, EngineRefused, EngineUnavailable, LedgerError
from swe_core.interception.server import ENDPOINT_FAILED, InterceptionServer
from swe_testing.provider import Fault, ScriptedProvider, say

from .helpers import HELLO, KEY, Plugin, Talk, by_hand, relay, sampled, sdk, stream, talk, who

FINE = Completion({"role": "assistant", "content": "fine"})


class Doing(Plugin):
    """An engine whose calls are `act`."""

    def __init__(self, act: Callable[[ChatRequest, Emit], Awaitable[Any]]) -> None:
        super().__init__(FINE)
        self._act = act

    async def complete(self, request: ChatRequest, session: EngineSession, emit: Any = None) -> Completion:
        await self._act(request, emit)  # type: ignore[arg-type]  # a stream is asked for where it is used
        return FINE


def requests_of(client: Any) -> list[httpx.Request]:
    """Collect each request that the SDK client sends from now on."""
    sent: list[httpx.Request] = []

    async def keep(request: httpx.Request) -> None:
        sent.append(request)

    client._client.event_hooks["request"].append(keep)
    return sent


@pytest.mark.parametrize(
    ("fault", "streamed"), [("500", False), ("429", True), ("404", True), ("html", False)]
)
async def test_failed_engine_is_asked_once(
    server: InterceptionServer, openai: ModuleType, fault: Fault, streamed: bool, caplog: Any
) -> None:
    """The engine makes its own retries; the SDK, with its default of two more, makes none on top."""
    caplog.set_level(logging.DEBUG)
    async with ScriptedProvider(then=fault) as provider, relay(provider) as engine:
        async with talk(server, engine) as said:
            async with sdk(server, said.gate) as client:
                posts = requests_of(client)
                for _ in range(2):
                    with pytest.raises(openai.APIStatusError) as caught:
                        await client.chat.completions.create(model="m", messages=HELLO, stream=streamed)
                    assert "answers no more calls" in caught.value.message
                    assert provider.url not in str(caught.value)
            with anyio.fail_after(120):
                failure = await said.gate.failed()
    assert len(posts) == 2
    assert len(provider.requests) == (3 if fault in ("500", "429") else 1)
    assert failure is said.gate.failure
    (turn,) = said.turns
    assert (said.gate.turns, turn.reply, turn.error) == (1, None, str(failure))
    for text in (str(failure), str(caught.value.body), turn.model_dump_json(), caplog.text):
        assert KEY not in text


async def test_rejected_request_ends_no_rollout(server: InterceptionServer, openai: ModuleType) -> None:
    """The agent gets the provider's own words, so that it can shorten its context."""
    async with ScriptedProvider([say("shorter")], faults=["400"]) as provider, relay(provider) as engine:
        async with talk(server, engine) as said, sdk(server, said.gate) as client:
            with pytest.raises(openai.BadRequestError, match="maximum context length is 8192 tokens"):
                await client.chat.completions.create(model="m", messages=HELLO)
            assert said.gate.failure is None
            text, _, _ = await stream(client)
    assert text == "shorter"
    assert [turn.error is None for turn in said.turns] == [False, True]
    assert len(provider.requests) == 2


async def test_failure_after_the_first_piece_is_an_error_event(server: Any, openai: ModuleType) -> None:
    reply = say("a reply of several pieces")
    faults: Any = {"broken-stream": "in the middle of a reply", "error-event": "the model crashed"}
    for fault, sentence in faults.items():
        async with ScriptedProvider([reply], then=fault) as provider, relay(provider) as engine:
            async with server.session(engine, who(), lambda _: None) as gate, sdk(server, gate) as client:
                with pytest.raises(openai.APIError, match="answers no more calls"):
                    await stream(client)
        assert isinstance(gate.failure, EngineUnavailable)
        assert sentence in str(gate.failure)
        assert len(provider.requests) == 1


async def test_keepalives_cover_a_slow_engine() -> None:
    async with ScriptedProvider(then="hang") as provider, InterceptionServer(keepalive=0.05) as server:
        async with relay(provider, timeout=0.8, max_retries=0) as engine, talk(server, engine) as said:
            response = await said.ask(stream=True)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text.count(": keepalive\n\n") >= 2
    last = response.text.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "engine_error"
    assert "sent nothing for 0.8 s" in str(said.gate.failure)


async def test_first_keepalive_comes_after_one_second() -> None:
    """At any interval of the later ones."""
    async with InterceptionServer(keepalive=10_000) as server:
        async with talk(server, Doing(lambda request, emit: anyio.sleep_forever())) as said:
            body = {"messages": HELLO, "stream": True}
            async with said.http.stream("POST", "/chat/completions", json=body) as response:
                assert await anext(response.aiter_text()) == ": keepalive\n\n"


async def test_engine_exception_fails_its_own_rollout_only(server: InterceptionServer) -> None:
    async with server.session(Plugin(FINE), who("good"), lambda _: None) as good:
        async with talk(server, Plugin(KeyError("logprobs"))) as bad:
            assert (await bad.ask()).status_code == 424
        async with by_hand(server, good) as http:
            assert "fine" in (await http.post("/chat/completions", json={"messages": HELLO})).text
    assert type(bad.gate.failure) is EngineError
    assert "Plugin failed in complete(): KeyError: 'logprobs'" in str(bad.gate.failure)
    assert good.failure is None
    async with talk(server, Plugin(None)) as bad:  # type: ignore[arg-type]  # what a wrong plugin does
        assert (await bad.ask()).status_code == 424
    assert "Plugin returned None from complete(), expected a Completion" in str(bad.gate.failure)


async def test_unrecordable_call_fails_the_rollout(server: InterceptionServer) -> None:
    def full(turn: Turn) -> None:
        raise OSError(28, "No space left on device")

    async with server.session(Plugin(FINE), who(), full) as gate, by_hand(server, gate) as http:
        response = await http.post("/chat/completions", json={"messages": HELLO})
    assert response.status_code == 424
    assert "fine" not in response.text
    assert "call 0 could not be recorded" in str(gate.failure)
    assert "No space left" in str(gate.failure)


async def test_engine_end_is_called_when_the_rollout_raises(server: Any) -> None:
    engine = Plugin(EngineRefused("no"))
    with pytest.raises(RuntimeError, match="the agent crashed"):
        async with server.session(engine, who(), lambda _: None):
            raise RuntimeError("the agent crashed")
    assert engine.ended == ["r1"]

    class Broken(Plugin):
        async def end(self, session: EngineSession) -> None:
            raise KeyError("gone")

    with pytest.raises(EngineError, match="KeyError: 'gone'"):
        async with server.session(Broken(EngineRefused("no")), who(), lambda _: None):
            pass


async def test_inconsistent_tokens_fail_the_rollout(server: InterceptionServer) -> None:
    """A turn that extends one which was never recorded: its prompt is unknown."""
    tokens = sampled("lost", extends=sampled("never recorded"))
    reply = Completion({"role": "assistant", "content": "lost"}, sampled=tokens)
    async with talk(server, Plugin(reply)) as said:
        response = await said.ask()
    assert response.status_code == 424
    assert "lost" not in response.text
    assert isinstance(said.gate.failure, LedgerError)
    (turn,) = said.turns
    assert (turn.error, turn.tokens) == (str(said.gate.failure), None)


async def test_tokens_of_a_failed_call_are_counted(server: InterceptionServer) -> None:
    async def breaks(request: ChatRequest, emit: Emit) -> None:
        request.progress.sampled = sampled("abc")
        raise EngineUnavailable("gone")

    async with talk(server, Doing(breaks)) as said:
        await said.ask()
        ledger = said.gate.ledger("error")
    (turn,) = said.turns
    assert turn.tokens is not None
    assert (turn.tokens.completion, turn.tokens.dropped) == ([97, 98, 99], "failed")
    assert ledger is not None
    assert (ledger.sampled, ledger.trainable) == (3, 0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_unexpected_error_is_reported_in_the_dialect_once(
    server: InterceptionServer, openai: ModuleType, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    """The reply has a lone surrogate, which cannot be encoded."""
    engine = Plugin(Completion({"role": "assistant", "content": "\ud800"}))
    async with server.session(engine, who(), lambda _: None) as gate, sdk(server, gate) as client:
        posts = requests_of(client)
        with pytest.raises(openai.InternalServerError, match=ENDPOINT_FAILED) as caught:
            await client.chat.completions.create(model="m", messages=HELLO, stream=streamed)
    assert caught.value.type == "server_error"
    assert len(posts) == 1
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.exc_info is not None
    assert gate.token not in caplog.text
    assert isinstance(gate.failure, EngineProtocolError)
    assert b'route="/rollout/{key}/v1/chat/completions",status="500"} 1.0' in server._metrics.text()


async def test_unencodable_piece_breaks(server: InterceptionServer, caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP status is sent already; a second one would look like an event."""
    heard, texts = anyio.Event(), list[str]()

    async def halves(request: ChatRequest, emit: Emit) -> None:
        await emit({"content": "a"})
        await heard.wait()
        await emit({"content": "\ud800"})
        await anyio.sleep_forever()

    async def listen(reply: httpx.Response) -> None:
        async for piece in reply.aiter_text():
            texts.append(piece)
            heard.set()

    async with talk(server, Doing(halves)) as said:
        body = {"messages": HELLO, "stream": True}
        async with said.http.stream("POST", "/chat/completions", json=body) as reply:
            with pytest.raises(httpx.RemoteProtocolError):
                await listen(reply)
    assert "".join(texts).count("data: ") == 1
    assert "HTTP/1.1" not in "".join(texts)
    assert "a reply of the engine cannot be written" in str(said.gate.failure)
    assert b'status="500"} 1.0' in server._metrics.text()
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def asked_until_the_budget_ends(server: InterceptionServer, engine: Doing) -> Talk:
    """A rollout that failed; with a longer budget, if a busy machine had not reached the engine by then."""
    for wall in (0.1, 1, 30):
        async with talk(server, engine, Budgets(wall=wall)) as said:
            said.gate.start()
            await said.ask(stream=True)
        if said.gate.failure is not None:
            break
    return said


async def test_wall_budget_that_ends_while_the_engine_tries_again_is_an_error_of_the_engine(
    server: InterceptionServer,
) -> None:
    async def trying(request: ChatRequest, emit: Emit) -> None:
        request.progress.trouble = "the provider fails (500)"
        await anyio.sleep_forever()

    said = await asked_until_the_budget_ends(server, Doing(trying))
    assert isinstance(said.gate.failure, EngineUnavailable)
    assert "(500), until the wall budget ran out" in str(said.gate.failure)


@pytest.mark.parametrize("piece", [{"tool_calls": [{"function": {"arguments": 1}}]}, "text"])
async def test_malformed_piece_fails_its_own_rollout_only(server: InterceptionServer, piece: Any) -> None:
    """Also when the wall budget joins the pieces sent so far."""

    async def malformed(request: ChatRequest, emit: Emit) -> None:
        request.progress.sampled = sampled("abc")
        await emit(piece)
        await anyio.sleep_forever()

    said = await asked_until_the_budget_ends(server, Doing(malformed))
    async with talk(server, Plugin(FINE)) as other:
        assert "fine" in (await other.ask()).text
    assert isinstance(said.gate.failure, EngineProtocolError)
    assert other.gate.failure is None
    (turn,) = said.turns
    assert turn.error == str(said.gate.failure)
    assert turn.tokens is not None
    assert turn.tokens.dropped == "failed"
