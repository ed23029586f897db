"""When the way breaks, nothing is lost, nothing happens twice, and bytes are exact."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.pull_relay import Timing
from swe_testing.ports import refusing
from swe_testing.sandbox.base import PATIENCE
from swe_testing.sandbox.network import hello, serving
from swe_testing.waiting import until

from .helpers import BOTH, LANGUAGES, QUICK, Proxy, cancelling, dial_host, reached, until_answered

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An agent, as it were."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        yield client


class Reverser:
    """An endpoint that answers a body with its bytes in reverse order, in pieces, and counts."""

    def __init__(self, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen[request.headers["X-Number"]] += 1
        left = (await request.read())[::-1]
        response = web.StreamResponse()
        await response.prepare(request)
        while left:
            count = self._random.randrange(1, len(left) + 1)
            await response.write(left[:count])
            left = left[count:]
            await asyncio.sleep(self._random.choice([0, 0, 0.003]))
        return response


Cut = tuple[int | None, int | None]
Cuts = st.lists(
    st.tuples(st.none() | st.integers(0, 3000), st.none() | st.integers(0, 150_000)), min_size=3, max_size=25
)


async def answered_once(language: str, cuts: list[Cut], seed: int) -> None:
    """Each request of several at once gets its own answer, and the endpoint has seen it once."""
    endpoint, draw = Reverser(seed), random.Random(seed)
    coming = iter(cuts)
    proxy = Proxy(dial_host, cut=lambda: next(coming, (None, None)))
    bodies = [draw.randbytes(draw.choice([0, 1, 700, 5000, 100_000])) for _ in range(10)]

    async def ask(agent: httpx.AsyncClient, number: int) -> None:
        answer = await agent.post("/", content=bodies[number], headers={"X-Number": str(number)})
        assert (answer.status_code, answer.content) == (200, bodies[number][::-1])

    async with serving({"/": endpoint.answer}) as server, reached(server, language, proxy) as (url, _):
        async with client(url) as agent, anyio.create_task_group() as tasks:
            for number in range(len(bodies)):
                tasks.start_soon(ask, agent, number)
    assert endpoint.seen == Counter(map(str, range(len(bodies))))


@pytest.mark.parametrize("language", BOTH)
async def test_connections_that_break(language: str) -> None:
    """Before the first byte, in a head, and in a body, each way."""
    cuts: list[Cut] = [(0, None), (None, 0), (100, None), (None, 90), (None, 300), (2000, 50_000)]
    await answered_once(language, [*cuts, *((700 + 50 * n, 1000 * n) for n in range(10))], 1)


@pytest.mark.slow
@pytest.mark.parametrize("language", BOTH)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=Cuts, seed=st.integers(0, 2**32))
async def test_connections_that_break_at_any_byte(language: str, cuts: list[Cut], seed: int) -> None:
    await answered_once(language, cuts, seed)


async def test_big_bodies_over_a_way_that_never_carries_them_whole() -> None:
    """3 MB each way, where every connection ends after 90 KB: each gets further than the one before."""
    endpoint, body = Reverser(1), random.Random(1).randbytes(3_000_000)
    proxy = Proxy(dial_host, cut=lambda: (90_000, 90_000))
    async with serving({"/": endpoint.answer}) as server, reached(server, proxy=proxy) as (url, _):
        async with client(url) as agent:
            answer = await agent.post("/", content=body, headers={"X-Number": "1"})
            assert answer.content == body[::-1]
    assert endpoint.seen == {"1": 1}
    assert len(proxy.calls) > 60


async def test_proxy_that_holds_answers_back() -> None:
    """Pulls that would never come become polls, which are answered at once."""
    proxy = Proxy(dial_host, holds_back=True)
    timing = Timing(open=20.0, hold=1000.0, patience=0.5, poll=0.5, tick=1000.0)
    async with serving({"/": hello}) as server, reached(server, proxy=proxy, timing=timing) as (url, _):
        async with client(url) as agent:
            for _ in range(3):
                assert (await agent.get("/")).text == "hello"
            polls = len(proxy.calls)
            await until(lambda: len(proxy.calls) >= polls + 2)  # a poll that brings nothing did not fail
            assert (await agent.get("/")).text == "hello"
    assert sum("stream=1" in call for call in proxy.calls) == 1


async def test_way_that_falls_silent() -> None:
    """A pull that is open and carries nothing any more is given up, and nothing is lost."""
    proxy = Proxy(dial_host)
    timing = Timing(open=20.0, hold=1000.0, patience=0.3, poll=0.5, tick=0.1, retry=0.01)
    async with serving({"/": hello}) as server, reached(server, proxy=proxy, timing=timing) as (url, _):
        async with client(url) as agent:
            proxy.stalled = True
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    assert (await agent.get("/")).text == "hello"

                tasks.start_soon(ask)
                await until(lambda: len(proxy.calls) >= 2)
                proxy.stalled = False


async def test_way_that_never_works() -> None:
    async def nowhere(port: int) -> anyio.abc.ByteStream:
        raise ConnectionRefusedError(port)

    timing = Timing(open=1.0, retry=0.01)
    with pytest.raises(SandboxError, match=r"could not be reached within 1 s: .*answered with 502"):
        async with reached("http://127.0.0.1:9", "python", Proxy(nowhere), timing):
            pass


@pytest.mark.parametrize("language", LANGUAGES)
async def test_killed_program_is_started_again(language: str) -> None:
    """On the same port; a request in flight sees its connection end, and the endpoint's side is closed."""
    asked, left = anyio.Event(), anyio.Event()

    async def hang(request: web.Request) -> web.Response:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()
        return web.Response()

    async with cancelling({"/": hello, "/hang": hang}) as server, reached(server, language) as (url, sandbox):
        async with client(url) as agent:
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(is_cut_off, agent, "/hang")
                    await asked.wait()
                    await sandbox.kill_all()
                with anyio.fail_after(PATIENCE):
                    await left.wait()
                await until_answered(agent, "/")
                asked, left = anyio.Event(), anyio.Event()


async def is_cut_off(agent: httpx.AsyncClient, path: str) -> None:
    with pytest.raises(httpx.TransportError):
        await agent.get(path)


@pytest.mark.parametrize("begun", [False, True])
async def test_client_that_leaves(begun: bool) -> None:
    """The endpoint's handler is cancelled, before or after the beginning of its answer."""
    asked, left = anyio.Event(), anyio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if begun:
            await response.prepare(request)
            await response.write(b"begun")
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()
        return response

    async with cancelling({"/": hello, "/hang": hang}) as server, reached(server) as (url, _):
        async with client(url) as agent:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.get, "/hang")
                await asked.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(PATIENCE):
                await left.wait()
            assert (await agent.get("/")).text == "hello"


async def test_endpoint_that_breaks_off() -> None:
    """Before its answer or in the middle of it: the client's connection ends, and the relay lives."""

    async def silent(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def halfway(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"the beginning")
        await anyio.sleep(0.1)
        return await silent(request)

    routes = {"/": hello, "/silent": silent, "/halfway": halfway}
    async with serving(routes) as server, reached(server) as (url, _), client(url) as agent:
        await is_cut_off(agent, "/silent")
        said: list[bytes] = []
        with pytest.raises(httpx.TransportError):
            await listen(agent, "/halfway", said)
        assert b"".join(said) == b"the beginning"
        assert (await agent.get("/")).text == "hello"


async def listen(agent: httpx.AsyncClient, path: str, said: list[bytes]) -> None:
    """Keep what an answer says, also when it breaks off."""
    async with agent.stream("GET", path) as answer:
        async for chunk in answer.aiter_raw():
            said.append(chunk)


async def test_endpoint_that_is_gone() -> None:
    with refusing() as server:
        async with reached(server) as (url, _), client(url) as agent:
            await is_cut_off(agent, "/")
            await is_cut_off(agent, "/")


async def test_more_concurrent_calls_than_slots() -> None:
    """64 are with the endpoint at once; more wait until one of them is answered."""
    waiting, most = 0, 0
    full = anyio.Event()

    async def together(request: web.Request) -> web.Response:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        if waiting == 64:
            full.set()
        await full.wait()
        await anyio.sleep(0.05)
        waiting -= 1
        return web.Response(text="together")

    async def ask(agent: httpx.AsyncClient) -> None:
        assert (await agent.get("/")).text == "together"

    limits = httpx.Limits(max_connections=None)
    async with serving({"/": together}) as server, reached(server) as (url, _):
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, limits=limits) as agent:
            async with anyio.create_task_group() as tasks:
                for _ in range(80):
                    tasks.start_soon(ask, agent)
    assert most == 64


async def test_errors_of_the_body_leave_as_they_are() -> None:
    async with serving({"/": hello}) as server:
        with pytest.raises(KeyError, match="mine"):
            async with reached(server, "python", None, QUICK):
                raise KeyError("mine")
