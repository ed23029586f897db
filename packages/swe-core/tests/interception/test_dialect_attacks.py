"""Hostile requests in the dialects: small ones that would cost the host much, and odd ones."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import suppress
from typing import Any

import anyio
import pytest

from swe_core.api.engine import Completion
from swe_core.interception import bodies
from swe_core.interception.dialects import DIALECTS, messages_reply, responses, responses_memory
from swe_core.interception.dialects.base import BadRequest, Dialect, ParsedRequest, Target
from swe_core.interception.dialects.responses_memory import Memory, memory_of
from swe_core.interception.server import InterceptionServer

from .helpers import Plugin, Script, by_hand, who

CHAT, RESPONSES, MESSAGES, GOOGLE = DIALECTS
LONG = "long" * 1000
USER = {"role": "user", "content": "go"}


def _target(dialect: Dialect) -> Target:
    return Target(dialect.routes[0], {"id": "r1", "model": "m"})


def _parse(dialect: Dialect, body: dict[str, Any], target: Target | None = None) -> ParsedRequest:
    return dialect.parse(json.dumps(body).encode(), target or _target(dialect))


def _answered(dialect: Dialect, target: Target, body: dict[str, Any], message: dict[str, Any]) -> Any:
    """Return the reply `message` to a request, as a client gets it."""
    return json.loads(dialect.reply(_parse(dialect, body, target), "m").body(Completion(message)))


def test_conversation_of_too_many_items_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the responses before it count, which a small request repeats."""
    monkeypatch.setattr(responses, "_MOST_ITEMS", 4)
    target = _target(RESPONSES)
    first = _answered(RESPONSES, target, {"input": [USER, USER]}, {"content": "1"})["id"]
    _parse(RESPONSES, {"input": "hi", "previous_response_id": first}, target)
    with pytest.raises(BadRequest, match=r"^the conversation has more than 4 items"):
        _parse(RESPONSES, {"input": [USER, USER], "previous_response_id": first}, target)


def test_stored_histories_share_their_beginnings() -> None:
    """Sub-agents take turns, and each sends its whole history."""
    memory, branches = Memory(), [[{"role": "user", "content": name}] for name in "abc"]
    for number in range(30):
        branch = branches[number % 3]
        output = [{"id": f"msg_{number}", "content": [str(number)]}]
        memory.keep(f"resp_{number}", branch, output)
        assert memory.history(f"resp_{number}") == [*branch, *output]
        echoed = {**output[0], "status": None}  # as an SDK sends it back
        branch += [echoed, {"role": "user", "content": "more"}]
    assert max(len(response.added) for response in [*memory._responses.values()][3:]) == 3
    assert len(memory._branches) == 3


def test_too_large_memory_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_memory, "_MOST", 2000)
    target = _target(RESPONSES)
    ids = [_answered(RESPONSES, target, {"input": f"{n}" * 300}, {"content": "1"})["id"] for n in range(5)]
    for known in (ids[0], ids[3]):
        with pytest.raises(BadRequest, match="not found"):
            _parse(RESPONSES, {"input": "x", "previous_response_id": known}, target)
    assert len(_parse(RESPONSES, {"input": "x", "previous_response_id": ids[4]}, target).messages) == 3


def test_memory_counts_small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list takes 20 times the memory of its JSON."""
    target = _target(RESPONSES)
    _answered(RESPONSES, target, {"input": [{**USER, "junk": [[]] * 1000}]}, {"content": "1"})
    assert RESPONSES.kept(target.memory) > 64 * 1000


def test_inputs_of_custom_tools_count_as_memory() -> None:
    target = _target(RESPONSES)
    memory_of(target).keep_arguments("c1", "x", LONG)
    assert RESPONSES.kept(target.memory) > len(LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "key", "message"),
    [
        (MESSAGES, "messages", {"role": "assistant"}),
        (RESPONSES, "input", {"role": "system"}),
        (RESPONSES, "input", {"role": "assistant", "id": f"msg_{'a' * 32}_0"}),
    ],
)
def test_joining_messages_takes_linear_time(dialect: Dialect, key: str, message: dict[str, Any]) -> None:
    """Large bodies of all rollouts are parsed one at a time; adding text to text took 20 seconds here."""
    raw = json.dumps({key: [*[{**message, "content": "x" * 1400}] * 19_000, USER]}).encode()
    began = time.process_time()
    assert len(dialect.parse(raw, _target(dialect)).messages) == 2
    assert time.process_time() - began < 3


def test_error_quotes_only_a_part_of_a_body() -> None:
    for dialect, body in (
        (CHAT, {"messages": [{"role": LONG, "content": ""}]}),
        (RESPONSES, {"input": "x", "previous_response_id": LONG}),
        (MESSAGES, {"messages": [{"role": LONG, "content": ""}]}),
        (GOOGLE, {"contents": [{"role": LONG}]}),
    ):
        with pytest.raises(BadRequest) as raised:
            _parse(dialect, body)
        assert len(str(raised.value)) < 2100
        assert raised.value.code == ("previous_response_not_found" if dialect is RESPONSES else None)


@pytest.mark.parametrize(("place", "levels"), [("extra", 127), ("tools", 125), ("messages", 122)])
def test_too_deep_request_is_rejected(place: str, levels: int) -> None:
    """orjson reads 1024 levels and writes 254."""

    def body(levels: int) -> dict[str, Any]:
        value: Any = []
        for level in range(levels - 1):
            value = {"a": value} if level % 2 else [value]
        call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": value}}]}
        values = {"extra": value, "tools": [{"function": value}], "messages": [call]}
        return {"messages": [USER], place: values[place]}

    _parse(CHAT, body(levels))
    with pytest.raises(BadRequest, match="nested more than 128 levels deep"):
        _parse(CHAT, body(levels + 1))


async def test_restored_arguments_count_as_values(server: InterceptionServer) -> None:
    """The request itself is tiny."""
    arguments = '{"a": [' + "1," * bodies.MAX_ARGUMENT_VALUES
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    engine = Script({"role": "assistant", "content": "", "tool_calls": [call]})
    async with server.session(engine, who(), lambda _: None) as gate, by_hand(server, gate) as http:
        first = await http.post("/messages", json={"messages": [USER]})
        (block,) = first.json()["content"]
        turn = {"role": "assistant", "content": [{**block, "input": {}}]}
        second = await http.post("/messages", json={"messages": [USER, turn, USER]})
    assert second.status_code == 400
    assert "the arguments of all 'tool_calls' have more than 20000 values" in second.text
    assert len(second.request.content) < 1000


async def test_memory_that_a_request_may_repeat_is_held(server: InterceptionServer) -> None:
    """So that requests of a few bytes do not each stand for megabytes at the same time."""
    reply = Completion({"role": "assistant", "content": "x" * 100_000})
    async with server.session(Plugin(reply), who(), lambda _: None) as gate, by_hand(server, gate) as http:
        room = server._bodies._room(gate)
        most = room.free
        seen: list[int] = []
        take = room.take

        async def taken(size: int) -> None:
            seen.append(size)
            await take(size)

        room.take = taken  # type: ignore[method-assign]  # of this instance alone
        first = await http.post("/responses", json={"input": "hi"})
        await http.post("/responses", json={"input": "go", "previous_response_id": first.json()["id"]})
    assert seen[0] < 100 < 100_000 < seen[1]
    assert room.free == most


async def test_too_large_compressed_body_is_not_decompressed_to_its_end(server: Any) -> None:
    """The connection closes with the answer; aiohttp would wait for the rest, and decompress it."""
    bomb = gzip.compress(b" " * (64 << 20))
    async with server.session(Plugin(Completion({})), who(), lambda _: None) as gate:
        head = (
            f"POST {gate.path}/messages HTTP/1.1\r\nHost: gate\r\nx-api-key: {gate.token}\r\n"
            f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
        )
        answer = b""
        async with await anyio.connect_tcp("127.0.0.1", int(server.url.rpartition(":")[2])) as client:
            await client.send(head.encode() + bomb[:-100])
            with anyio.fail_after(60), suppress(anyio.EndOfStream):
                while True:
                    answer += await client.receive()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"type":"request_too_large"' in answer


def test_repeated_requests_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry gets the same reply, with ids of its own, and costs no turn."""
    monkeypatch.setattr(messages_reply, "_MOST_TOLD", 3)
    target = _target(MESSAGES)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = {"content": "", "tool_calls": [call]}
    ids = [_answered(MESSAGES, target, {"messages": [USER]}, reply)["content"][0]["id"] for _ in range(5)]
    assert [*target.memory["told"]] == ids[2:]
