"""Bodies of megabytes: rejected unread if they cannot fit, else bounded; they block no other rollout."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.engine import Completion
from swe_core.api.limits import Budgets
from swe_core.interception import bodies
from swe_core.interception.bodies import Room
from swe_core.interception.dialects import DIALECTS, chat, common
from swe_core.interception.dialects.base import BadRequest, ParsedRequest, Target
from swe_core.interception.gate import Gate
from swe_core.interception.server import InterceptionServer
from swe_core.system import json_size
from swe_core.system.json_size import MAX_VALUES, values
from swe_testing.waiting import until

from .helpers import HELLO, Plugin, Typist, by_hand, talk, who

OK = Completion({"role": "assistant", "content": "ok"})
SMALL = json.dumps({"messages": HELLO}).encode()
SPACES = b" " * (1 << 20)
PATH = "/chat/completions"
TARGET = Target(DIALECTS[0].routes[0])
LARGE = 300_000
"""Bytes of a body that is not parsed in the event loop."""


class Short(Plugin):
    """An engine whose short context allows only the smallest body limit."""

    @property
    def context(self) -> int:
        return 100


@dataclass
class Partial:
    """A client whose request ends when `end` is called."""

    stream: anyio.abc.SocketStream
    rest: bytes

    async def end(self) -> None:
        await self.stream.send(self.rest)

    async def answer(self) -> bytes:
        """The status line and what else came with it."""
        with anyio.fail_after(30):
            return await self.stream.receive()


@asynccontextmanager
async def partial(server: Any, gate: Gate, body: bytes, sent: int, more: str = "") -> AsyncIterator[Partial]:
    """A request of which the head, with `more` headers, and `sent` bytes of the body are sent."""
    head = f"POST {gate.path}{PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gate.token}\r\n"
    async with await anyio.connect_tcp("127.0.0.1", int(server.url.rpartition(":")[2])) as stream:
        await stream.send(f"{head}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body[:sent])
        yield Partial(stream, body[sent:])


async def test_body_beyond_the_context_is_rejected_unread(server: InterceptionServer) -> None:
    async with talk(server, Short(OK)) as said:
        async with partial(server, said.gate, SPACES * 2, sent=0) as request:
            reply = await request.answer()
        assert reply.startswith(b"HTTP/1.1 400 ")
        error = orjson.loads(reply.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 100 tokens" in error["message"]
        assert "resulted in 32768 tokens or more" in error["message"]
        assert (said.gate.turns, said.gate.refusals, said.gate.ended_by) == (0, 1, "context")
        assert said.gate.refusal == error["message"]
        assert (await said.http.post(PATH, content=SMALL)).status_code == 200
        assert (said.gate.turns, said.gate.ended_by) == (1, None)  # the agent got further


async def test_body_without_length_is_rejected(server: InterceptionServer) -> None:
    """The declared length of a compressed body does not count either."""

    async def chunked() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield SPACES

    async with server.session(Plugin(OK), who(), lambda _: None, Budgets(context=50)) as gate:
        async with by_hand(server, gate) as http:
            for content, headers in (
                (chunked(), {}),
                (gzip.compress(SPACES * 3), {"Content-Encoding": "gzip"}),
            ):
                reply = await http.post(PATH, content=content, headers=headers)
                assert reply.json()["error"]["code"] == "context_length_exceeded"
                assert "maximum context length is 50 tokens" in reply.json()["error"]["message"]
            schemas = [{"type": "function", "function": {"name": "x" * 900_000}}]
            fits = await http.post(PATH, json={"messages": HELLO, "tools": schemas})
            assert fits.status_code == 200  # whatever the context is
    assert gate.refusals == 2


async def test_ended_rollout_rejects_before_the_context_check(server: InterceptionServer) -> None:
    async with talk(server, Short(OK)) as said:
        said.gate.submit()
        assert (await said.http.post(PATH, content=SPACES * 2)).status_code == 410
    assert (said.gate.refusals, said.gate.ended_by) == (0, None)


async def test_tool_arguments_do_not_count_as_prompt(server: InterceptionServer) -> None:
    async with talk(server, Short(OK)) as said:
        assert (await said.http.post("/tools/none", content=SPACES * 2)).status_code == 404
        reply = await said.http.post("/tools/none", content=b'{"a":[' + b"[]," * MAX_VALUES + b"[]]}")
        assert (reply.status_code, said.gate.ended_by) == (400, None)
        assert f"more than {MAX_VALUES} values" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b'{"role":"user"},' * MAX_VALUES + b'{"role":"user"}]}',
        b'{"messages":[{"role":"user"}],"more":{' + b'"a":1,' * MAX_VALUES + b'"a":1}}',
        b"[" * 2 * MAX_VALUES + b"]" * 2 * MAX_VALUES,
    ],
    ids=["messages", "members", "nested"],
)
async def test_body_of_many_values_is_refused_unparsed(server: Any, monkeypatch: Any, body: bytes) -> None:
    monkeypatch.setattr(chat, "load", lambda raw: pytest.fail("it is parsed"))
    async with talk(server, Plugin(OK)) as said:
        reply = await said.http.post(PATH, content=body.ljust(LARGE))
    assert reply.status_code == 400
    assert f"the request body has more than {MAX_VALUES} values; send" in reply.json()["error"]["message"]
    assert said.gate.refusals == 1


json_values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='\\",[]{}:a\n\u4e00'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='\\",[{a'), inner),
)


def _values(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(_values, inner))


@given(json_values, st.booleans(), st.integers(min_value=1, max_value=20))
def test_value_count_ignores_text(value: Any, escaped: bool, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "_PIECE", piece)
        assert values(json.dumps(value, ensure_ascii=escaped).encode()) == _values(value)


def test_slow_parser_only_gets_lone_surrogates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    real = json.loads
    monkeypatch.setattr(common.json, "loads", lambda raw: seen.append(raw) or real(raw))
    for broken in (SMALL + b"!", SMALL[:-1], b'{"messages": NaN}', b"[" * 2000):
        with pytest.raises(BadRequest, match="is not JSON"):
            DIALECTS[0].parse(broken, TARGET)
    assert DIALECTS[0].parse(SMALL, TARGET).messages == HELLO
    assert seen == []
    half = rb'{"messages": [{"role": "user", "content": "cut \ud83d"}]}'
    assert DIALECTS[0].parse(half, TARGET).messages == [{"role": "user", "content": "cut ?"}]
    assert seen == [half]


async def test_large_body_stops_no_other(server: InterceptionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another large body waits for the parser; small ones do not."""
    parsing, free, real = threading.Event(), threading.Event(), chat.ChatCompletions.parse

    def parse(dialect: chat.ChatCompletions, raw: bytes, target: Target) -> ParsedRequest:
        if len(raw) > 3 << 20:
            parsing.set()
            assert free.wait(30)
        return real(dialect, raw, target)

    monkeypatch.setattr(chat.ChatCompletions, "parse", parse)
    async with AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(server.session(Plugin(OK), who(name), lambda _: None))
            for name in ("hostile", "one", "two")
        ]
        hostile, one, two = [await stack.enter_async_context(by_hand(server, gate)) for gate in gates]
        statuses: dict[str, int] = {}

        async def ask(name: str, size: int) -> None:
            client = hostile if name == "hostile" else two
            statuses[name] = (await client.post(PATH, content=SMALL.ljust(size))).status_code

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "hostile", 4 << 20)
            await until(parsing.is_set)
            group.start_soon(ask, "large", 2 << 20)
            for size in (len(SMALL), LARGE, 900_000):
                assert (await one.post(PATH, content=SMALL.ljust(size))).status_code == 200
            assert statuses == {}
            free.set()
        assert statuses == {"hostile": 200, "large": 200}


async def test_bytes_in_flight_of_a_rollout_are_bounded() -> None:
    engine = Typist("a", letters=0)
    async with InterceptionServer(max_body=1000) as server, AsyncExitStack() as stack:
        gate = await stack.enter_async_context(server.session(engine, who(), lambda _: None))
        http = await stack.enter_async_context(by_hand(server, gate))
        room = server._bodies._room(gate)
        statuses: list[int] = []

        async def ask(size: int) -> None:
            statuses.append((await http.post(PATH, content=SMALL.ljust(size))).status_code)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, 900)
            group.start_soon(ask, 901)
            await until(lambda: len(engine.asked) == 2)
            group.start_soon(ask, 902)
            await until(room._turn.locked)
            assert len(engine.asked) == 2
            engine.let(1)  # the end of one call
            await until(lambda: len(engine.asked) == 3)
            engine.let(2)
        assert statuses == [200, 200, 200]


async def test_compressed_body_reserves_the_largest_size() -> None:
    body = gzip.compress(SMALL.ljust(900))
    async with InterceptionServer(max_body=1000) as server:
        async with server.session(Plugin(OK), who(), lambda _: None) as gate:
            room = server._bodies._room(gate)
            before = room.free
            async with partial(server, gate, body, sent=9, more="Content-Encoding: gzip\r\n") as request:
                await until(lambda: room.free == before - 1000, timeout=30)
                await request.end()
                assert (await request.answer()).startswith(b"HTTP/1.1 200 ")


async def test_small_bodies_do_not_wait_for_stalled_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_SMALL", 100)
    async with InterceptionServer(max_body=1000) as server, AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(server.session(Plugin(OK), who(str(name)), lambda _: None))
            for name in range(6)
        ]
        slow = [
            await stack.enter_async_context(partial(server, gate, SMALL.ljust(1000), sent=500))
            for gate in gates[:4]
        ]
        await until(lambda: server._bodies._large.free == 0)
        fifth = await stack.enter_async_context(partial(server, gates[4], SMALL.ljust(1000), sent=500))
        await until(server._bodies._large._turn.locked)
        async with by_hand(server, gates[5]) as http:
            assert (await http.post(PATH, content=SMALL)).status_code == 200
        await fifth.end()
        assert gates[4].turns == 0
        await slow[0].end()
        assert (await fifth.answer()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("limit", "why"), [("_PATIENCE", "come within"), ("_SILENCE", "came for 0.01 s")])
async def test_stalled_large_body_times_out(server: Any, monkeypatch: Any, limit: str, why: str) -> None:
    monkeypatch.setattr(bodies, "_SMALL", 100)
    monkeypatch.setattr(bodies, limit, 0.01)
    async with server.session(Plugin(OK), who(), lambda _: None) as gate:
        free = server._bodies._large.free
        async with partial(server, gate, SMALL.ljust(1000), sent=500) as request:
            reply = await request.answer()
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"x-should-retry: false" in reply.lower()
        assert server._bodies._large.free == free
    assert why in gate.refusal


async def test_rollout_reserves_room_for_one_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two silent connections of one rollout would otherwise hold half of the room of all."""
    monkeypatch.setattr(bodies, "_SMALL", 100)
    async with InterceptionServer(max_body=1000) as server:
        async with server.session(Plugin(OK), who(), lambda _: None) as gate:
            room, large = server._bodies._room(gate), server._bodies._large
            async with (
                partial(server, gate, SMALL.ljust(1000), sent=500) as one,
                partial(server, gate, SMALL.ljust(1000), sent=500) as two,
            ):
                await until(lambda: room.free == 0 and large.free < 4000)
                await until(lambda: room.large.statistics().tasks_waiting == 1)
                assert large.free == 3000
                for request in (one, two):
                    await request.end()
                replies = [await request.answer() for request in (one, two)]
            assert [reply[:13] for reply in replies] == [b"HTTP/1.1 200 "] * 2


async def test_call_arguments_with_too_many_values_are_rejected(server: InterceptionServer) -> None:
    """All calls together. Arguments are JSON in a string; comparing them would hold the event loop."""
    function = {"name": "b", "arguments": "[[]" + ",[]" * 12_000 + "]"}
    call = {"id": "c", "type": "function", "function": function}
    content = json.dumps({"messages": [*HELLO, {"role": "assistant", "tool_calls": [call, call]}]}).encode()
    assert len(content) < bodies._INLINE
    async with talk(server, Plugin(OK)) as said:
        for body in (content, content.replace(b",[]", b"\\u002c[]"), content.ljust(LARGE)):
            reply = await said.http.post(PATH, content=body)
            assert reply.status_code == 400
            assert "the arguments of all 'tool_calls' have more than 20000 values" in reply.text


async def test_room_is_granted_in_order() -> None:
    room, order = Room(10), list[int]()
    await room.take(8)

    async def take(size: int) -> None:
        await room.take(size)
        order.append(size)

    async with anyio.create_task_group() as group:
        for size in (5, 1):
            group.start_soon(take, size)
            await anyio.wait_all_tasks_blocked()
        assert order == []  # the second one would fit, and the first would starve
        room.give(8)
    assert order == [5, 1]
    assert room.free == 4
