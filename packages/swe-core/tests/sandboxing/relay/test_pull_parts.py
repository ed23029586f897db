"""The host's half of the pull relay in parts: frames, headers, pace, and a program that is not ours."""

from __future__ import annotations

import math

import anyio
import httpx
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from swe_core.errors import SandboxDied
from swe_core.sandboxing.relay.frames import MAX_BODY, MAX_LINE, ProtocolError, Question, Unpacker, signature
from swe_core.sandboxing.relay.pull_relay import Timing, reach_by_pull
from swe_core.sandboxing.relay.send_buffer import ROOM, Outbox, Pace
from swe_core.system.http_server import serve
from swe_testing.sandbox.network import hello, serving

from .helpers import Proxy, dial_host, on_this_host, over, reached, request

SECRET = bytes(32)


@given(bodies=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(1, 200)), ticks=st.integers(0, 3))
def test_frames_are_read_from_any_pieces(bodies: list[bytes], cuts: list[int], ticks: int) -> None:
    log = b"".join(
        b"\n" * ticks + request(number, len(body)) + body for number, body in enumerate(bodies, start=1)
    )
    unpacker, found = Unpacker(), []
    for cut in [*cuts, len(log) + 1]:
        found += [(frame.id, payload) for frame, payload in unpacker.feed(log[:cut])]
        log = log[cut:]
    assert found == list(enumerate(bodies, start=1))


def test_invalid_frames_are_rejected() -> None:
    """It comes from a sandbox: nothing of it may end up in a request."""
    for said in (
        b"nonsense\n",
        b"[]\n",
        b"{}\n",
        b'{"kind":"other","id":1,"n":0}\n',
        b'{"kind":"gone","id":0,"n":0}\n',
        b'{"kind":"gone","id":1,"n":-1}\n',
        request(n=MAX_BODY + 1),
        request(path="elsewhere"),
        request(path="/ HTTP/1.1\r\nX: y"),
        request(method="GET /"),
        request(headers=[["a", "b\r\nc: d"]]),
        request(headers=[["a b", ""]]),
        request(headers=[["a", "\u0101"]]),
        request(more=1),
        b"x" * (MAX_LINE + 1),
    ):
        with pytest.raises(ProtocolError, match="relay inside sent"):
            list(Unpacker().feed(said))


def test_proofs_cover_every_byte_and_side() -> None:
    """Of the same request, neither side's proof is the other's, and each byte counts."""
    asked = Question(SECRET, "/push?at=0&up=0", b"body")
    nonce = asked.headers["X-Relay-Nonce"]
    assert asked.headers["X-Relay-Proof"] == signature(SECRET, "host", nonce, asked.path, b"body")
    assert asked.opened(signature(SECRET, "relay", nonce, asked.path, b"4").encode() + b"\n4") == b"4"
    for role, path, said in (("host", asked.path, b"4"), ("relay", "/", b"4"), ("relay", asked.path, b"5")):
        with pytest.raises(Exception, match="but not by the relay"):
            asked.opened(signature(SECRET, role, nonce, path, said).encode() + b"\n4")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(
    answers=st.lists(st.tuples(st.floats(0, 60), st.floats(0, 20)), min_size=20, max_size=20),
    slow=st.booleans(),
)
def test_calls_per_minute_are_bounded(answers: list[tuple[float, float]], slow: bool) -> None:
    """20 answers in a minute, however they lie, said in pieces every 0.1 s: with the pulls at most 60."""
    clock = Clock()
    pace = Pace(clock)
    if slow:
        pace.slow_down()
    calls = 0
    for step in range(600):
        clock.now = step / 10
        for number, (start, length) in enumerate(answers):
            if start <= clock.now <= start + length:
                pace.more(number)
            if start + length <= clock.now < start + length + 0.1:
                pace.over(number)
        if pace.due() <= clock.now:
            calls += 1
            pace.sent()
    pulls = 20 + 60 / Timing().poll if slow else 60 / Timing().hold + 1
    assert calls + pulls <= 60


def test_answer_pace_slows_down() -> None:
    """At once, then after 0.5 s, 2 s, 5 s, 5 s; the end at once; then nothing. A closed one is forgotten."""
    clock = Clock()
    pace = Pace(clock)
    pace.refill = 0.0
    sent = []
    for step in range(2000):
        clock.now = step / 100
        pace.more(1)
        if pace.due() <= clock.now:
            sent.append(clock.now)
            pace.sent()
    assert sent == [0.02, 0.52, 2.52, 7.52, 12.52, 17.52]
    pace.over(1)
    assert pace.due() == -math.inf
    pace.sent()
    assert pace.due() == math.inf
    pace.more(2)
    pace.forget(2)
    assert pace.due() == math.inf


async def test_send_buffer_regains_room() -> None:
    """The endpoint's answers are not read while too much of them waits."""
    outbox = Outbox()
    outbox.append(bytes(ROOM + 1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.room)
        await anyio.wait_all_tasks_blocked()
        outbox.acknowledge(1)
    assert (outbox.base, outbox.end, len(outbox)) == (1, ROOM + 1, ROOM)


async def test_request_reaches_the_endpoint_unchanged() -> None:
    """The path is the agent's to the letter; host and length are ours; neighbours' headers go no further."""
    seen: list[web.BaseRequest] = []

    async def note(asked: web.BaseRequest) -> web.Response:
        seen.append(asked)
        return web.Response(text="noted", headers={"Connection": "X-Mine", "X-Mine": "1", "X-Other": "2"})

    async with (
        serve(web.ServerRunner(web.Server(note))) as origin,
        reached(origin) as (url, _),
        httpx.AsyncClient(trust_env=False) as agent,
    ):
        extensions = {"target": b"//other/a%2fb/../\"<{c}>?d='e'"}
        headers = {"Host": "other", "Connection": "X-Hop", "X-Hop": "1", "TE": "trailers", "X-End": "2"}
        answer = await agent.post(f"{url}/", content=b"abc", headers=headers, extensions=extensions)
    assert seen[0].raw_path == "//other/a%2fb/../\"<{c}>?d='e'"
    assert f"http://{seen[0].headers['Host']}" == origin
    assert not {"X-Hop", "TE"} & set(seen[0].headers)
    assert (seen[0].headers["X-End"], seen[0].headers["Content-Length"]) == ("2", "3")
    assert answer.text == "noted"
    assert "X-Mine" not in answer.headers
    assert answer.headers["X-Other"] == "2"


async def test_dead_sandbox_ends_the_relay() -> None:
    """The next user of the sandbox gets the error; the relay itself exits quietly."""
    proxy = Proxy(dial_host)
    async with on_this_host("python") as sandbox, over(proxy) as connect, serving({"/": hello}) as server:
        async with reach_by_pull(sandbox, server, connect):
            sandbox._control.close()
            with pytest.raises(SandboxDied):
                await sandbox.exec(["true"])
            await anyio.sleep(0.2)
        with pytest.raises(SandboxDied):
            async with reach_by_pull(sandbox, server, connect):
                pass


async def test_short_answer_costs_one_push() -> None:
    """A short answer is one push, and no request costs a pull."""
    proxy = Proxy(dial_host)
    async with serving({"/": hello}) as server, reached(server, "python", proxy, Timing()) as (url, _):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as agent:
            for _ in range(5):
                assert (await agent.get("/")).text == "hello"
    assert [call.partition("?")[0] for call in proxy.calls] == ["GET /pull", *["POST /push"] * 5]
