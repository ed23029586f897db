"""The interception server, by real clients over real sockets: the openai SDK, and requests by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import anyio
import httpx
import openai
import pytest
import tenacity
from openai import AsyncOpenAI

from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai import engine as engine_module
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.builtin.replay import ReplayConfig
from swe_core.builtin.replay.engine import ReplayEngine
from swe_core.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Usage
from swe_core.errors import EngineError, EngineRefused, EngineUnavailable
from swe_core.interception.server import MAX_BODY, InterceptionServer
from swe_core.interception.session import GONE, OVER, Gate
from swe_core.record import Turn
from swe_core.testing.provider import Fault, ScriptedProvider, call_tool, say
from swe_core.turns import requests

pytestmark = pytest.mark.anyio
KEY = "sk-do-not-show-this-0123456789"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(engine_module, "_BACKOFF", tenacity.wait_none())


@pytest.fixture
async def server() -> AsyncIterator[InterceptionServer]:
    async with InterceptionServer() as server:
        yield server


def _who(rollout: str = "r1", task: str = "t") -> EngineSession:
    return EngineSession(rollout, task, 0, "a")


def _relay(provider: ScriptedProvider, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(OpenAIConfig(url=provider.url, model="scripted", **{"max_retries": 2, **settings}))


def _sdk(server: InterceptionServer, gate: Gate, **settings: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token, **settings)


@asynccontextmanager
async def _by_hand(server: InterceptionServer, gate: Gate) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {gate.token}"}
    async with httpx.AsyncClient(base_url=server.url + gate.path, headers=headers, timeout=60) as client:
        yield client


async def _stream(client: AsyncOpenAI, **more: Any) -> tuple[str, str | None, Any]:
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


async def test_a_tool_task_with_the_sdk_streaming_and_not(server: InterceptionServer) -> None:
    """A whole little agent: it calls a tool, sees its result and ends; every request can be read back."""
    script = [call_tool("bash", {"command": "ls"}), say("a.py is there"), call_tool("bash", {}), say("bye")]
    turns: list[Turn] = []
    async with ScriptedProvider(script) as provider, _relay(provider) as engine:
        async with server.session(engine, _who(), turns.append) as gate:
            async with _sdk(server, gate) as client:
                messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
                for stream in (False, False, True, True):
                    if stream:
                        async with client.chat.completions.stream(
                            model="any", messages=messages, tools=TOOLS
                        ) as events:
                            message = (await events.get_final_completion()).choices[0].message
                    else:
                        whole = await client.chat.completions.create(
                            model="any", messages=messages, tools=TOOLS
                        )
                        message = whole.choices[0].message
                        assert whole.usage is not None
                        assert whole.usage.total_tokens > 0
                    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                    for call in message.tool_calls or ():
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": "a.py"})
                assert [model.id async for model in client.models.list()] == ["scripted"]
        assert gate.turns == len(turns) == 4
        assert gate.usage.prompt_tokens == 40
    assert [turn.reply for turn in turns] == [reply.message for reply in script]
    assert [turn.kept for turn in turns] == [0, 1, 3, 4]
    assert [turn.index for turn in turns] == [0, 1, 2, 3]
    sent = [{**body, "model": "any"} for body in (seen.body for seen in provider.requests)]
    for there, here in zip(sent, requests(turns), strict=True):
        assert there["messages"] == here["messages"]
        assert there["tools"] == here["tools"]


async def test_two_servers_in_a_chain(server: InterceptionServer, tmp_path: Any) -> None:
    """The engine `openai` relays to another interception server, which answers from a recording."""
    file = tmp_path / "r.jsonl"
    message = {"role": "assistant", "content": "from the far end, in several pieces"}
    usage = {"prompt_tokens": 7, "completion_tokens": 9}
    line = {"task_id": "far", "replies": [{"message": message, "usage": usage}] * 2}
    file.write_text(json.dumps(line))
    async with InterceptionServer() as far, ReplayEngine(ReplayConfig(file=file)) as replay:
        async with far.session(replay, _who("far", "far"), lambda _: None) as far_gate:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FAR_TOKEN", far_gate.token)
                config = OpenAIConfig(url=far.url + far_gate.path, model="replay", api_key_env="FAR_TOKEN")
                engine = OpenAIEngine(config)
            async with engine, server.session(engine, _who(), lambda _: None) as gate:
                await engine.check()
                async with _sdk(server, gate) as client:
                    text, finish, counted = await _stream(client)
                    whole = await client.chat.completions.create(model="any", messages=HELLO)
    assert (text, finish) == (message["content"], "stop")
    assert whole.choices[0].message.content == text
    assert (counted.prompt_tokens, counted.completion_tokens, counted.total_tokens) == (7, 9, 16)
    assert gate.usage == Usage(prompt_tokens=14, completion_tokens=18)


class Plugin(Engine):
    """An engine as a plugin might write one: does not stream, or raises, or records who asked."""

    model = "plugin"

    def __init__(self, reply: Completion | Exception) -> None:
        self.reply = reply
        self.ended: list[str] = []

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    async def end(self, session: EngineSession) -> None:
        self.ended.append(session.rollout_id)


async def test_an_engine_that_cannot_stream_is_streamed_as_one_piece(server: InterceptionServer) -> None:
    message = call_tool("bash", {"command": "ls"}).message
    engine = Plugin(Completion(message=message, finish_reason="tool_calls"))
    async with server.session(engine, _who(), lambda _: None) as gate:
        async with _sdk(server, gate) as client:
            async with client.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as events:
                final = (await events.get_final_completion()).choices[0]
        async with _by_hand(server, gate) as http:
            raw = (await http.post("/chat/completions", json={"messages": HELLO, "stream": True})).text
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.arguments == '{"command": "ls"}'
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    assert [len(chunk["choices"]) for chunk in chunks] == [1, 1]  # no usage chunk: it was not asked for
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert raw.endswith("data: [DONE]\n\n")
    assert engine.ended == ["r1"]


@pytest.mark.parametrize("path", ["/chat/completions", "/models"])
async def test_wrong_tokens_and_unknown_rollouts_look_the_same(server: InterceptionServer, path: str) -> None:
    engine = Plugin(Completion(message={"role": "assistant", "content": "secret"}))
    method = "GET" if path == "/models" else "POST"
    async with (
        server.session(engine, _who("one"), lambda _: None) as one,
        server.session(engine, _who("two"), lambda _: None) as two,
        httpx.AsyncClient() as client,
    ):
        assert one.token != two.token
        answers = set()
        for where, authorization in [
            (one.path, None),
            (one.path, "Bearer"),
            (one.path, "Bearer \xff"),
            (one.path, one.token),
            (one.path, f"Basic {one.token}"),
            (one.path, f"Bearer {two.token}"),
            ("/rollout/three/v1", f"Bearer {one.token}"),
            ("/rollout/three/v1", None),
        ]:
            headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
            response = await client.request(method, server.url + where + path, headers=headers, content=b"{}")
            answers.add((response.status_code, response.text))
        assert len(answers) == 1
        ((status, text),) = answers
        assert status == 401
        assert json.loads(text)["error"]["type"] == "authentication_error"
        async with AsyncOpenAI(base_url=server.url + one.path, api_key=two.token) as sdk:
            with pytest.raises(openai.AuthenticationError, match="no such rollout, or not its token"):
                await sdk.models.list()
    assert one.turns == 0
    assert engine.ended == ["two", "one"]


async def test_a_left_rollout_is_unknown(server: InterceptionServer) -> None:
    engine = Plugin(Completion(message={"role": "assistant", "content": "x"}))
    async with server.session(engine, _who(), lambda _: None) as gate:
        with pytest.raises(ValueError, match="'r1' is registered already"):
            async with server.session(engine, _who(), lambda _: None):
                pass
    async with _by_hand(server, gate) as http:
        assert (await http.get("/models")).status_code == 401
    async with server.session(engine, _who(), lambda _: None) as again:
        assert again.token != gate.token


async def test_healthz_and_unknown_paths(server: InterceptionServer) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        for method, path, status in [("GET", "/nothing", 404), ("DELETE", "/healthz", 405)]:
            response = await client.request(method, path)
            assert response.status_code == status
            assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"messages": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "is an empty list; send a JSON object"),
        (b'"text"', "is a string; send a JSON object"),
        (b"{}", "'messages' is missing or null"),
        (b'{"messages": {}}', "'messages' is an object; send a list"),
        (b'{"messages": []}', "'messages' is an empty list"),
        (b'{"messages": ["hi"]}', r"messages[0] is a string"),
        (b'{"messages": [{"role": "user"}, {"role": 3}]}', "messages[1].role is a number"),
        (b'{"messages": [{"role": "user"}], "stream": "yes"}', "'stream' is a string"),
        (b'{"messages": [{"role": "user"}], "stream_options": 1}', "'stream_options' is a number"),
        (b'{"messages": [{"role": "user"}], "n": 2}', "'n' is 2"),
    ],
)
async def test_a_bad_body_is_a_400_that_says_why(
    server: InterceptionServer, body: bytes, sentence: str
) -> None:
    engine = Plugin(EngineError("must not be asked"))
    async with server.session(engine, _who(), lambda _: None) as gate, _by_hand(server, gate) as http:
        response = await http.post("/chat/completions", content=body)
    assert response.status_code == 400
    assert sentence in response.json()["error"]["message"]
    assert gate.turns == 0
    assert gate.failure is None


async def test_half_a_surrogate_pair_is_replaced(server: InterceptionServer) -> None:
    """JavaScript agents cut texts in the middle of an emoji; the request is honest all the same."""
    turns: list[Turn] = []
    engine = Plugin(Completion(message={"role": "assistant", "content": "ok"}))
    body = rb'{"messages": [{"role": "user", "content": "cut \ud83d"}]}'
    async with server.session(engine, _who(), turns.append) as gate, _by_hand(server, gate) as http:
        assert (await http.post("/chat/completions", content=body)).status_code == 200
    assert turns[0].messages[0]["content"] == "cut ?"


async def test_a_body_over_the_cap_is_a_413(server: InterceptionServer) -> None:
    engine = Plugin(Completion(message={"role": "assistant", "content": "ok"}))
    async with server.session(engine, _who(), lambda _: None) as gate, _by_hand(server, gate) as http:
        big = b'{"messages": [{"role": "user", "content": "' + b"x" * MAX_BODY + b'"}]}'
        response = await http.post("/chat/completions", content=big)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"
    async with InterceptionServer(max_body=1000) as small:
        async with small.session(engine, _who(), lambda _: None) as gate, _by_hand(small, gate) as http:

            async def chunked() -> AsyncIterator[bytes]:  # no Content-Length to refuse by
                for _ in range(3):
                    yield b" " * 400

            assert (await http.post("/chat/completions", content=chunked())).status_code == 413
            fits = json.dumps({"messages": HELLO}).ljust(1000).encode()
            assert (await http.post("/chat/completions", content=fits)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["500", "429", "401", "404", "html", "drop"])
async def test_a_failed_engine_is_asked_once_however_often_the_sdk_asks(
    server: InterceptionServer, fault: Fault, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine makes its own retries; the SDK, with its default of two more, makes none on top."""
    caplog.set_level(logging.DEBUG)
    turns: list[Turn] = []
    posts = 0

    async def count(request: httpx.Request) -> None:
        nonlocal posts
        posts += 1

    async with ScriptedProvider(then=fault) as provider, _relay(provider) as engine:
        async with server.session(engine, _who(), turns.append) as gate:
            async with _sdk(server, gate) as client:
                client._client.event_hooks["request"].append(count)
                for _ in range(2):
                    with pytest.raises(openai.APIStatusError) as caught:
                        await client.chat.completions.create(model="m", messages=HELLO, stream=stream)
                    assert "answers no more calls" in caught.value.message
                    assert provider.url not in str(caught.value)
            with anyio.fail_after(30):
                failure = await gate.failed()
    assert posts == 2
    assert len(provider.requests) == (3 if fault in ("500", "429", "drop") else 1)
    assert failure is gate.failure
    assert gate.turns == len(turns) == 1
    assert turns[0].reply is None
    assert turns[0].error == str(failure)
    for text in (str(failure), str(caught.value.body), turns[0].model_dump_json(), caplog.text):
        assert KEY not in text


async def test_a_refused_request_is_told_and_the_rollout_goes_on(server: InterceptionServer) -> None:
    """A context that is too long is for the agent to mend: it is told the provider's own words."""
    turns: list[Turn] = []
    async with ScriptedProvider([say("shorter")], faults=["400"]) as provider, _relay(provider) as engine:
        async with server.session(engine, _who(), turns.append) as gate, _sdk(server, gate) as client:
            with pytest.raises(openai.BadRequestError, match="maximum context length is 8192 tokens"):
                await client.chat.completions.create(model="m", messages=HELLO)
            assert gate.failure is None
            text, _, _ = await _stream(client)
    assert text == "shorter"
    assert [turn.error is None for turn in turns] == [False, True]
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("broken-stream", "in the middle of a reply"), ("error-event", "the model crashed")],
)
async def test_a_failure_after_the_first_piece_is_an_error_event(
    server: InterceptionServer, fault: Fault, sentence: str
) -> None:
    reply = say("a reply of several pieces")
    async with ScriptedProvider([reply], then=fault) as provider, _relay(provider) as engine:
        async with server.session(engine, _who(), lambda _: None) as gate, _sdk(server, gate) as client:
            with pytest.raises(openai.APIError, match="answers no more calls"):
                await _stream(client)
    assert isinstance(gate.failure, EngineUnavailable)
    assert sentence in str(gate.failure)
    assert len(provider.requests) == 1


async def test_a_slow_engine_is_covered_by_keepalives_and_may_still_fail() -> None:
    async with ScriptedProvider(then="hang") as provider, InterceptionServer(keepalive=0.1) as server:
        async with _relay(provider, timeout=0.5, max_retries=0) as engine:
            async with server.session(engine, _who(), lambda _: None) as gate:
                async with _by_hand(server, gate) as http:
                    body = {"messages": HELLO, "stream": True}
                    response = await http.post("/chat/completions", json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text.count(": keepalive\n\n") >= 2
    last = response.text.strip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "engine_error"
    assert "sent nothing for 0.5 s" in str(gate.failure)


async def test_pieces_arrive_while_the_engine_still_generates(server: InterceptionServer) -> None:
    async with ScriptedProvider([say("first part, and more")], then="hang-in-stream") as provider:
        async with _relay(provider) as engine:
            async with server.session(engine, _who(), lambda _: None) as gate, _sdk(server, gate) as client:
                stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
                with anyio.fail_after(30):
                    chunk = await anext(aiter(stream))
                assert chunk.choices[0].delta.content == "first pa"
                assert not provider.requests[0].finished.is_set()
                await stream.close()


@pytest.mark.parametrize(("stream", "fault"), [(False, "hang"), (True, "hang"), (True, "hang-in-stream")])
async def test_a_client_that_leaves_aborts_the_generation(
    server: InterceptionServer, stream: bool, fault: Fault
) -> None:
    turns: list[Turn] = []
    recorded = anyio.Event()

    def on_turn(turn: Turn) -> None:
        turns.append(turn)
        recorded.set()

    async with ScriptedProvider(then=fault) as provider, _relay(provider) as engine:
        async with server.session(engine, _who(), on_turn) as gate, _by_hand(server, gate) as http:
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    await http.post("/chat/completions", json={"messages": HELLO, "stream": stream})

                group.start_soon(ask)
                with anyio.fail_after(30):
                    await provider.asked.wait()
                group.cancel_scope.cancel()
            with anyio.fail_after(30):
                await provider.requests[0].finished.wait()
                await recorded.wait()
            assert provider.requests[0].disconnected
            assert gate.failure is None
    assert [turn.error for turn in turns] == [GONE]


@pytest.mark.parametrize(("stream", "fault"), [(False, "hang"), (True, "hang"), (True, "hang-in-stream")])
async def test_leaving_a_session_aborts_what_is_in_flight(
    server: InterceptionServer, stream: bool, fault: Fault
) -> None:
    turns: list[Turn] = []
    responses: list[httpx.Response] = []
    async with ScriptedProvider(then=fault) as provider, _relay(provider) as engine:
        async with anyio.create_task_group() as group:
            async with server.session(engine, _who(), turns.append) as gate:

                async def ask(number: int) -> None:
                    async with _by_hand(server, gate) as http:
                        body = {"messages": HELLO, "stream": stream, "seed": number}
                        responses.append(await http.post("/chat/completions", json=body))

                for number in range(3):
                    group.start_soon(ask, number)
                with anyio.fail_after(30):
                    while len(provider.requests) < 3:  # noqa: ASYNC110 (three events would say no more)
                        await anyio.sleep(0.01)
            assert [turn.error for turn in turns] == [OVER] * 3  # on leaving, not some time later
        with anyio.fail_after(30):
            for seen in provider.requests:
                await seen.finished.wait()
    assert all(seen.disconnected for seen in provider.requests)
    assert len(responses) == 3
    for response in responses:
        # A stream whose first bytes are out has its status; it ends with an error event.
        assert response.status_code in ((200, 410) if stream else (410,))
        assert OVER in response.text


async def test_an_engine_that_raises_anything_fails_its_rollout_only(server: InterceptionServer) -> None:
    good = Plugin(Completion(message={"role": "assistant", "content": "fine"}))
    async with (
        server.session(Plugin(KeyError("logprobs")), _who("bad"), lambda _: None) as bad_gate,
        server.session(good, _who("good"), lambda _: None) as good_gate,
    ):
        async with _sdk(server, bad_gate) as client:
            with pytest.raises(openai.APIStatusError):
                await client.chat.completions.create(model="m", messages=HELLO)
        async with _sdk(server, good_gate) as client:
            assert (await _stream(client))[0] == "fine"
    assert type(bad_gate.failure) is EngineError
    assert str(bad_gate.failure) == "KeyError: 'logprobs'"
    assert good_gate.failure is None


async def test_a_call_that_cannot_be_recorded_fails_the_rollout(server: InterceptionServer) -> None:
    def full(turn: Turn) -> None:
        raise OSError(28, "No space left on device")

    engine = Plugin(Completion(message={"role": "assistant", "content": "unrecorded"}))
    async with server.session(engine, _who(), full) as gate, _by_hand(server, gate) as http:
        response = await http.post("/chat/completions", json={"messages": HELLO})
    assert response.status_code == 424
    assert "unrecorded" not in response.text
    assert "call 0 could not be recorded" in str(gate.failure)
    assert "No space left" in str(gate.failure)


async def test_many_rollouts_at_once_see_only_their_own(server: InterceptionServer, tmp_path: Any) -> None:
    file = tmp_path / "r.jsonl"
    replies = [[{"role": "assistant", "content": f"task {t} call {c}"} for c in range(3)] for t in range(30)]
    file.write_text(
        "".join(
            json.dumps({"task_id": f"t{t}", "replies": [{"message": m} for m in mine]}) + "\n"
            for t, mine in enumerate(replies)
        )
    )
    heard: dict[int, list[str]] = {}
    recorded: dict[int, list[Turn]] = {t: [] for t in range(30)}

    async def one(number: int) -> None:
        who = _who(f"r{number}/ ä", f"t{number}")  # an id that needs quoting in a path
        async with server.session(engine, who, recorded[number].append) as gate:
            async with _sdk(server, gate) as client:
                heard[number] = [(await _stream(client, seed=call))[0] for call in range(3)]

    async with ReplayEngine(ReplayConfig(file=file)) as engine:
        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(one, number)
    for number, mine in enumerate(replies):
        assert heard[number] == [message["content"] for message in mine]
        assert [turn.reply for turn in recorded[number]] == mine


async def test_the_engines_end_is_told_even_if_the_rollout_raises(server: InterceptionServer) -> None:
    engine = Plugin(EngineRefused("no"))
    with pytest.raises(RuntimeError, match="the agent crashed"):
        async with server.session(engine, _who(), lambda _: None):
            raise RuntimeError("the agent crashed")
    assert engine.ended == ["r1"]


async def test_whatever_an_engines_end_raises_is_the_engines_failure(server: InterceptionServer) -> None:
    class Broken(Plugin):
        async def end(self, session: EngineSession) -> None:
            raise KeyError("gone")

    with pytest.raises(EngineError, match="KeyError: 'gone'"):
        async with server.session(Broken(EngineRefused("no")), _who(), lambda _: None):
            pass


async def test_a_server_that_is_not_open_has_no_url() -> None:
    server = InterceptionServer()
    with pytest.raises(RuntimeError, match="not open"):
        _ = server.url


async def test_a_body_that_is_complete_only_after_the_rollout_ended(server: InterceptionServer) -> None:
    """The token was good when the request began; the engine must not be asked all the same."""
    engine = Plugin(Completion(message={"role": "assistant", "content": "too late"}))
    body = json.dumps({"messages": HELLO}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    async with server.session(engine, _who(), lambda _: None) as gate:
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


async def test_nothing_is_left_behind_by_clients_that_misbehave(
    server: InterceptionServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty rollouts with clients that leave at any moment, over a provider that fails in many ways."""
    random = Random(3)
    faults: list[Fault] = ["ok", "ok", "hang", "hang-in-stream", "broken-stream", "500", "drop", "html"]
    unlimited = httpx.Limits(max_connections=None)
    before = len(asyncio.all_tasks())
    async with ScriptedProvider([say("x" * 200)], faults=random.choices(faults, k=1000)) as provider:
        async with _relay(provider, max_retries=1) as engine, httpx.AsyncClient(limits=unlimited) as client:

            async def misbehave(gate: Gate, patience: float, body: bytes, token: str) -> None:
                with anyio.move_on_after(patience), suppress(httpx.HTTPError):
                    url = f"{server.url}{gate.path}/chat/completions"
                    await client.post(url, content=body, headers={"Authorization": f"Bearer {token}"})

            async def rollout(number: int) -> None:
                plain, streamed = (
                    json.dumps({"messages": HELLO, "stream": stream}).encode() for stream in (False, True)
                )
                async with server.session(engine, _who(str(number)), lambda _: None) as gate:
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
        with anyio.fail_after(30):
            for seen in provider.requests:
                await seen.finished.wait()
    with anyio.fail_after(30):
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 (closing connections end their tasks)
            await anyio.sleep(0.02)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
