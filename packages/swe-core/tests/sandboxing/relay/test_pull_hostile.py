"""A hostile program in the relay's place: what it says is bounded, cheap, and nothing but a SandboxError."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.sandboxing.relay import launcher, pull_relay, receiver, requests
from swe_core.sandboxing.relay.frames import MAX_PROOF, ProtocolError, Question, Unpacker, signature
from swe_core.sandboxing.relay.pull_relay import Timing, reach_by_pull
from swe_core.sandboxing.relay.session import converse
from swe_core.sandboxing.relay.transport import HttpTransport, TransportError, http_client
from swe_testing.sandbox.base import PATIENCE
from swe_testing.sandbox.network import hello, serving
from swe_testing.waiting import until

from .helpers import (
    LANGUAGES,
    QUICK,
    Proxy,
    cancelling,
    dial_host,
    on_this_host,
    over,
    reached,
    request,
    until_answered,
)

pytestmark = pytest.mark.anyio
SECRET = bytes(32)
ANY = "http://127.0.0.1:9"


class Impostor:
    """A way to a program that says what a test wants; with the right proof, unless told otherwise."""

    def __init__(
        self, *said: bytes, pushed: bytes = b"0", proof: Callable[[str, str, bytes], bytes] | None = None
    ) -> None:
        self.said = said
        self.pushed = pushed
        self.proof = proof or self._right

    @staticmethod
    def _right(nonce: str, path: str, said: bytes) -> bytes:
        return signature(SECRET, "relay", nonce, path, said).encode() + b"\n"

    @asynccontextmanager
    async def pull(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        async def chunks() -> AsyncIterator[bytes]:
            yield self.proof(headers["X-Relay-Nonce"], path, b"")
            for said in self.said:
                yield said
            await anyio.sleep_forever()

        yield chunks()

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        return self.proof(headers["X-Relay-Nonce"], path, self.pushed) + self.pushed


async def talk(impostor: Impostor, endpoint: str = ANY) -> None:
    async with httpx.AsyncHTTPTransport() as client:
        with anyio.fail_after(PATIENCE):
            await converse(
                impostor,
                SECRET,
                QUICK,
                endpoint,
                client,
                opened=lambda: None,
                failed=lambda error: None,
            )


@pytest.mark.parametrize("proof", [b"x" * (MAX_PROOF + 1), b"x" * (4 << 20), b"x" * 64 + b"\n", b"\n"])
async def test_client_without_a_proof_is_refused(proof: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is kept, and after some attempts it counts as a stranger."""
    monkeypatch.setattr(receiver, "_IMPOSTURES", 4)
    with pytest.raises(ProtocolError, match="not ours any more"):
        await talk(Impostor(proof=lambda *_: proof))


async def test_signs_of_life_in_masses() -> None:
    with pytest.raises(ProtocolError, match="signs of life"):
        await talk(Impostor(b"\n" * (1 << 20)))


def test_signs_of_life_are_dropped_together() -> None:
    unpacker = Unpacker()
    assert list(unpacker.feed(b"\n" * (8 << 20))) == []
    assert unpacker.signs == 8 << 20


@pytest.mark.parametrize("said", [b"abc", b"", b"-1", b"1 ", b"9" * 5000, "\u0661".encode()])
async def test_push_answered_with_no_number(said: bytes) -> None:
    async with serving({"/": hello}) as server:
        with pytest.raises(ProtocolError, match="without a number"):
            await talk(Impostor(request(1), pushed=said), server)


@settings(max_examples=60, deadline=None)
@given(said=st.lists(st.binary(max_size=200) | st.builds(request, st.integers(), st.integers()), max_size=5))
def test_any_output_is_a_frame_or_a_protocol_error(said: list[bytes]) -> None:
    unpacker = Unpacker()
    try:
        for piece in said:
            for frame, _ in unpacker.feed(piece):
                assert 0 < frame.id < 1 << 53
    except ProtocolError:
        pass


async def test_bodies_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone may be as big as it likes; ours sends no second one then."""
    monkeypatch.setattr(requests, "MAX_BODIES", 1000)

    async def hang(asked: web.Request) -> web.Response:
        await anyio.sleep_forever()
        return web.Response()

    async with serving({"/": hang}) as server:
        with pytest.raises(ProtocolError, match="bodies of more than 1000 bytes at once"):
            await talk(Impostor(request(1, 5000) + bytes(5000), request(2, 1) + b"x"), server)


async def test_more_disconnects_than_clients() -> None:
    gone = json.dumps({"kind": "gone", "id": 1, "n": 0}).encode() + b"\n"
    with pytest.raises(ProtocolError, match="more clients left"):
        await talk(Impostor(request(1) + gone + gone))


@pytest.mark.parametrize("language", LANGUAGES)
async def test_bodies_wait_inside_and_who_leaves_is_heard(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many bytes are with the host at once. While they are, a client that leaves is still told up, and its
    place is the next one's."""
    monkeypatch.setattr(requests, "MAX_BODIES", 3 << 16)
    now, most, done = 0, 0, 0
    full = anyio.Event()

    async def hang(asked: web.Request) -> web.Response:
        nonlocal now, most, done
        await asked.read()
        now += 1
        most = max(most, now)
        if now == 3:
            full.set()
        try:
            await anyio.sleep(0.05 if done else PATIENCE)
        finally:
            now -= 1
            done += 1
        return web.Response(text="late")

    async with cancelling({"/": hang}) as server, reached(server, language) as (url, _):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE, limits=limits) as agent:

            async def ask() -> None:
                assert (await agent.post(url, content=bytes(1 << 16))).text == "late"

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as patient:
                    async with anyio.create_task_group() as impatient:
                        for _ in range(3):
                            impatient.start_soon(partial(agent.post, url, content=bytes(1 << 16)))
                        await full.wait()
                        for _ in range(5):
                            patient.start_soon(ask)
                        await anyio.sleep(0.2)
                        assert most == 3
                        impatient.cancel_scope.cancel()
    assert most == 3


BOMB = gzip.compress(bytes(64 << 20))


async def test_answers_over_http_are_bounded_and_not_decoded() -> None:
    """An endless answer to a push, an endless error, and what would be much when decoded."""
    sent = 0

    async def endless(asked: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=500 if "error" in asked.path else 200)
        await response.prepare(asked)
        while True:
            await response.write(b"x" * 1000)
            sent += 1000

    async def bomb(asked: web.Request) -> web.Response:
        return web.Response(body=BOMB, headers={"Content-Encoding": "gzip"})

    routes = {"/error": endless, "/push": endless, "/bomb": bomb}
    async with serving(routes) as server, http_client() as client:
        way = HttpTransport(client, server)
        with anyio.fail_after(PATIENCE):
            for path, why in (
                ("/push", "more than the relay"),
                ("/error", "answered with 500"),
                ("/bomb", "in the encoding 'gzip'"),
            ):
                with pytest.raises(TransportError, match=why):
                    await way.push(path, b"", {})
            for path, why in (("/error", "answered with 500"), ("/bomb", "in the encoding 'gzip'")):
                with pytest.raises(TransportError, match=why):
                    async with way.pull(path, {}):
                        pass
    assert sent < 64 << 20


async def test_cookies_of_one_sandbox_go_to_no_other() -> None:
    came: list[str | None] = []

    async def sets(asked: web.Request) -> web.Response:
        came.append(asked.headers.get("Cookie"))
        return web.Response(headers={"Set-Cookie": "a=b; Path=/"})

    async with serving({"/one/push": sets, "/other/push": sets}) as server, http_client() as client:
        for sandbox in ("one", "other"):
            await HttpTransport(client, f"{server}/{sandbox}").push("/push", b"", {})
    assert came == [None, None]


def test_long_first_line_of_a_whole_answer() -> None:
    with pytest.raises(TransportError, match="but not by the relay"):
        Question(SECRET, "/").opened(b"x" * (1 << 20))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (request(2) + request(1), "request 1 after 2"),
        (b"".join(map(request, range(1, 66))), "more than 64 requests at once"),
        (request(1), "took 999999 bytes"),
    ],
)
async def test_replaced_program_is_detected(said: bytes, why: str) -> None:
    async with serving({"/": hello}) as server:
        with pytest.raises(ProtocolError, match=why):
            await talk(Impostor(said, pushed=b"999999"), server if "took" in why else ANY)


class Liar:
    """A sandbox whose interpreter prints what a test wants and then waits."""

    id = "liar"
    spec = SimpleNamespace(network="llm")

    def __init__(self, said: bytes) -> None:
        self.said = said

    async def start(self, argv: object, **_: object) -> Any:
        killed = anyio.Event()

        async def output() -> AsyncIterator[tuple[str, bytes]]:
            yield "stdout", self.said
            await killed.wait()

        async def wait() -> int:
            await killed.wait()
            return 137

        async def kill() -> None:
            killed.set()

        return SimpleNamespace(output=output, wait=wait, kill=kill)


@pytest.mark.parametrize(
    "line", [b"x", b"1 2 3", b"1", b"0 1", b"1 65536", b"-1 2", b"1 99999999", b"1  2", b"+1 2", b"1 2 "]
)
async def test_ready_line_that_ours_never_says(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="as its ports"):
        async with reach_by_pull(Liar(b"ready " + line + b"\n"), ANY, lambda port: Impostor()):
            pass


async def test_program_replaced_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again: it is the code inside that did it, and only that leaves."""
    with pytest.raises(SandboxBroken, match="as its relay"):
        await reach_while_it_is_replaced("echo ready 1 x; exec sleep 100", monkeypatch)


async def reach_while_it_is_replaced(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach an endpoint for ever; that script is run instead of the program once it is reached."""
    async with (
        on_this_host("python") as sandbox,
        over(Proxy(dial_host)) as connect,
        serving({"/": hello}) as server,
    ):
        with anyio.fail_after(PATIENCE):
            async with reach_by_pull(sandbox, server, connect, timing=QUICK):
                monkeypatch.setattr(launcher, "_SCRIPT", script)
                await sandbox.kill_all()
                await anyio.sleep_forever()


SKEWED = """
import time
time.time = lambda: 4e9
time.time_ns = lambda: int(4e18)
time.localtime = time.gmtime = time.strftime = None
"""


@pytest.mark.parametrize("language", LANGUAGES)
async def test_no_clock_is_compared(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside it is another century, and nothing depends on it."""
    before = launcher._sources("pull")
    python = before[0].replace("\nimport asyncio\n", SKEWED + "import asyncio\n", 1)
    assert python != before[0]
    node = "Date.now = () => 4e12;\n" + before[1]
    monkeypatch.setattr(launcher, "_sources", lambda name: (python, node))
    async with serving({"/": hello}) as server, reached(server, language) as (url, _):
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as agent:
            for _ in range(3):
                assert (await agent.get(url)).text == "hello"


async def test_program_that_ends_each_time_before_the_first_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it listens, and does not: what comes of it is no error of a task group."""

    async def nowhere(port: int) -> anyio.abc.ByteStream:
        raise ConnectionRefusedError(port)

    async with on_this_host("python") as sandbox, over(Proxy(nowhere)) as connect:
        monkeypatch.setattr(launcher, "_SCRIPT", "echo ready 1 2")
        timing = Timing(open=PATIENCE, retry=0.001, retry_most=0.001)
        with pytest.raises(SandboxBroken, match="as its relay"):
            async with reach_by_pull(sandbox, ANY, connect, timing=timing):
                pass


@pytest.mark.parametrize("script", ["exit 3", "exit 69", "echo ready; exit 0"])
async def test_program_that_ends_again_and_again(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced interpreter that just ends, or is not there: it is not started for ever."""
    monkeypatch.setattr(pull_relay, "_MAX_PENALTY", 4)
    with pytest.raises(SandboxBroken, match="again and again: the "):
        await reach_while_it_is_replaced(script, monkeypatch)


async def test_program_that_is_killed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon after each start."""
    monkeypatch.setattr(pull_relay, "_MAX_PENALTY", 4)
    async with serving({"/": hello}) as server:

        async def killed() -> None:
            async with reached(server) as (url, sandbox), httpx.AsyncClient(trust_env=False) as agent:
                while True:
                    await sandbox.kill_all()
                    await until_answered(agent, url)

        with (
            anyio.fail_after(PATIENCE),
            pytest.raises(SandboxBroken, match="it ended, each time within 30 s"),
        ):
            await killed()


async def test_program_that_is_killed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran well in between, however often it is."""
    monkeypatch.setattr(pull_relay, "_MAX_PENALTY", 3)
    monkeypatch.setattr(pull_relay, "_STABLE", 0.0)
    async with serving({"/": hello}) as server, reached(server) as (url, sandbox):
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as agent:
            for _ in range(5):
                await sandbox.kill_all()
                await until_answered(agent, url)


LIAR = """
import http.server, json, sys
settings = json.loads(sys.stdin.read())
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 64 + b"\\n")
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("ready", settings["port"], server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("whose", ["the way's", "the code's"])
async def test_answers_that_prove_nothing(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy with a page for everything answers also for a port on which nobody can listen, and the sandbox
    counts as lost; where it does not, the program was replaced, which is the deed of the code inside."""
    monkeypatch.setattr(receiver, "_IMPOSTURES", 3)
    proxy = Proxy(dial_host)
    kind = SandboxDied if whose == "the way's" else SandboxBroken

    async def lied_to() -> None:
        async with serving({"/": hello}) as server, reached(server, "python", proxy) as (_, sandbox):
            if whose == "the way's":
                proxy.page = b"<html>We will be back soon.</html>" + b" " * 5000
            else:
                monkeypatch.setattr(launcher, "_sources", lambda name: (LIAR, ""))
            await sandbox.kill_all()
            await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE), pytest.raises(SandboxError) as caught:
        await lied_to()
    assert type(caught.value) is kind, caught.value
    assert ("answered by itself" in str(caught.value)) == (whose == "the way's")


async def test_page_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that serves its own page for a while costs what was in flight, and nothing else."""
    monkeypatch.setattr(receiver, "_IMPOSTURES", 3)
    proxy = Proxy(dial_host)
    async with serving({"/": hello}) as server, reached(server, "python", proxy) as (url, sandbox):
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as agent:
            for _ in range(2):
                proxy.page, proxy.pages = b"x" * 200, 0
                await sandbox.kill_all()
                await until(lambda: proxy.pages >= 8)  # enough to pass the limit of 3 twice
                proxy.page = None
                await until_answered(agent, url)
