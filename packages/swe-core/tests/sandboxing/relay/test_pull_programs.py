"""The two programs that run inside, by themselves: what they say to a host, to agents and to strangers."""

from __future__ import annotations

import ast
import json
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.abc import SocketStream

from swe_core.sandboxing.relay.frames import Gone, Question, RequestFrame, Unpacker, pack
from swe_core.sandboxing.relay.pull_relay import HttpTransport, TransportError, http_client
from swe_testing.sandbox.base import PATIENCE

from .helpers import BOTH, LANGUAGES, program_of, running

SECRET = bytes(range(32))
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SETTINGS = {"secret": SECRET.hex(), "port": 0, "tick": 0.1, "bodies": 1 << 20}


@dataclass
class Inside:
    """A program that runs, and what a host would do with it."""

    port: int
    control: int
    transport: HttpTransport
    taken: int = 0
    pushed: int = 0

    @asynccontextmanager
    async def asked(self, said: bytes = GET) -> AsyncIterator[SocketStream]:
        """A connection of an agent that says this."""
        async with await anyio.connect_tcp("127.0.0.1", self.port) as agent:
            await agent.send(said)
            yield agent

    async def poll(self, hold: float = 5.0) -> list[tuple[RequestFrame | Gone, bytes]]:
        """The next frames."""
        question = Question(SECRET, f"/pull?from={self.taken}&hold={hold:g}&stream=0")
        async with self.transport.pull(question.path, question.headers) as chunks:
            said = question.opened(b"".join([chunk async for chunk in chunks]))
        self.taken += len(said)
        return list(Unpacker().feed(said))

    async def push(self, data: bytes, at: int | None = None) -> int:
        """Send bytes of the host's log; what the program has of it then."""
        at = self.pushed if at is None else at
        question = Question(SECRET, f"/push?at={at}&up={self.taken}", data)
        answer = await self.transport.push(question.path, data, question.headers)
        self.pushed = int(question.opened(answer))
        return self.pushed


@pytest.fixture(params=LANGUAGES)
async def inside(request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    """One of the programs, run as inside a sandbox."""
    argv, settings = program_of("pull", request.param), json.dumps(SETTINGS).encode()
    async with running(argv, settings) as (port, control), http_client() as client:
        yield Inside(port, control, HttpTransport(client, f"http://127.0.0.1:{control}"))


async def heard(stream: SocketStream, mark: bytes | None = None) -> bytes:
    """What comes back, up to a mark or to the end."""
    said = b""
    with anyio.fail_after(PATIENCE):
        while mark is None or not said.endswith(mark):
            try:
                said += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                break
    return said


def answer(id: int, body: bytes = b"ok", status: int = 200, headers: list[list[str]] | None = None) -> bytes:
    """A whole answer, as a host sends it."""
    head = pack("head", id, status=status, reason="Fine", headers=headers or [])
    return head + (pack("data", id, body) if body else b"") + pack("end", id)


@pytest.mark.parametrize("inside", BOTH, indirect=True)
async def test_request_and_answer(inside: Inside) -> None:
    """Method, path, headers and body go up unchanged; status, reason, headers and body come down so."""
    async with inside.asked(b"PUT /a%2Fb/../c?d='e'|f HTTP/1.1\r\nHost: x\r\nX-One: caf\xe9\r\n") as agent:
        await agent.send(b"x-one:  two \r\nContent-Length: 3\r\n\r\n\x00\xff\n")
        [(frame, body)] = await inside.poll()
        assert isinstance(frame, RequestFrame)
        assert (frame.method, frame.path, body) == ("PUT", "/a%2Fb/../c?d='e'|f", b"\x00\xff\n")
        ones = [pair for pair in frame.headers if pair[0].lower() == "x-one"]
        assert ones == [("X-One", "café"), ("x-one", "two")]
        headers = [["Set-Cookie", "a=1"], ["Set-Cookie", "b=café"], ["Content-Length", "2"]]
        await inside.push(answer(frame.id, headers=headers))
        said = await heard(agent, b"ok")
    assert said.startswith(
        b"HTTP/1.1 200 Fine\r\nSet-Cookie: a=1\r\nSet-Cookie: b=caf\xe9\r\nContent-Length: 2\r\n"
    )
    assert b"date:" not in said.lower()


_CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_bodies(inside: Inside) -> None:
    expects = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na"
    for said, body in (
        (_CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde"),
        (_CHUNKED + b"0\r\nA: trailer\r\n\r\n", b""),
        (expects, b"a"),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    ):
        async with inside.asked(said) as agent:
            [(frame, came)] = await inside.poll()
            assert came == body, said
            await inside.push(answer(frame.id))
            back = await heard(agent, b"\r\n0\r\n\r\n")
        first = b"HTTP/1.1 100 Continue\r\n\r\n" if said is expects else b""
        assert back.startswith(first + b"HTTP/1.1 200"), said


async def test_end_of_an_answer(inside: Inside) -> None:
    """Without a length it is sent in chunks, but not to old clients, and without a body where none may be."""
    for method, version, status, ending in (
        ("HEAD", "1.1", 200, b"\r\n\r\n"),
        ("GET", "1.1", 204, b"\r\n\r\n"),
        ("GET", "1.1", 304, b"\r\n\r\n"),
        ("GET", "1.0", 200, b"\r\n\r\nok"),
        ("GET", "1.1", 200, b"\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    ):
        head = f"{method} / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with inside.asked(head.encode()) as agent:
            [(frame, _)] = await inside.poll()
            await inside.push(answer(frame.id, b"ok" if b"ok" in ending else b"", status=status))
            said = await heard(agent)
        assert said.endswith(ending), (method, version, status)
        assert (b"chunked" in said) == (b"0\r\n\r\n" in ending or (method == "HEAD" and b"chunked" in said))


async def test_invalid_requests(inside: Inside) -> None:
    """It is answered at once, and the host never hears of it."""
    for said, status in (
        (b"GET http://elsewhere/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (_CHUNKED + b"xyz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ):
        async with inside.asked(said) as agent:
            assert (await heard(agent)).startswith(b"HTTP/1.1 %d " % status), said[:100]
        assert await inside.poll(0.0) == [], said[:100]


@pytest.mark.slow
async def test_body_that_is_too_big(inside: Inside) -> None:
    """One byte over 32 MiB is refused, and its sender comes to read it; 32 MiB are taken."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{inside.port}", trust_env=False) as agent:
        assert (await agent.post("/", content=bytes((32 << 20) + 1))).status_code == 413
    assert await inside.poll(0.0) == []


async def test_client_disconnect_is_reported_upstream(inside: Inside) -> None:
    async with inside.asked():
        [(asked, _)] = await inside.poll()
    [(gone, _)] = await inside.poll()
    assert isinstance(gone, Gone)
    assert gone.id == asked.id
    assert await inside.push(answer(gone.id)) == inside.pushed  # what is for nobody is taken all the same


def post(path: str, size: int = 0) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + bytes(size)


async def seen(inside: Inside) -> None:
    """Return when the program has come to know what was done before, and that was nothing for the host."""
    for _ in range(3):
        assert await inside.poll(0.0) == []


def asked_in(frames: list[tuple[RequestFrame | Gone, bytes]]) -> list[tuple[str, int]]:
    return [
        (frame.path, frame.id) if isinstance(frame, RequestFrame) else ("gone", frame.id)
        for frame, _ in frames
    ]


LEAVING = ["ends", *(pytest.param(how, marks=pytest.mark.slow) for how in ("is reset", "says more and ends"))]


def leave(agent: socket.socket, how: str) -> None:
    if how == "is reset":
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "says more and ends":
        agent.sendall(b"POST")
    agent.close()


@pytest.mark.parametrize("how", LEAVING)
async def test_client_that_leaves_while_its_body_waits_is_never_asked_for(inside: Inside, how: str) -> None:
    """It may ask again already: two generations would run. What was counted for it is free again."""
    most = SETTINGS["bodies"] - 1000
    with ExitStack() as stack:

        def client() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", inside.port), PATIENCE))

        first, second, third = client(), client(), client()
        first.sendall(post("/first", most))
        assert asked_in(await inside.poll()) == [("/first", 1)]
        for agent, path in ((second, "/second"), (third, "/third")):
            agent.sendall(post(path, 2000))
            await seen(inside)
        leave(second, how)
        await seen(inside)
        for number, (path, later, size) in enumerate(
            (("/third", "/fourth", most), ("/fourth", "/fifth", 2000), ("/fifth", "", 0)), start=1
        ):
            await inside.push(answer(number))
            assert asked_in(await inside.poll()) == [(path, number + 1)]
            if later:
                client().sendall(post(later, size))
                await seen(inside)


@pytest.mark.slow
async def test_client_that_does_not_read_is_as_one_that_has_left(inside: Inside) -> None:
    """Its request is closed at the endpoint, and its place is free on both sides."""
    async with inside.asked():
        [(asked, _)] = await inside.poll()
        await inside.push(pack("head", asked.id, status=200, reason="OK", headers=[]))
        piece = pack("data", asked.id, bytes((1 << 20) - 100))
        frames: list[tuple[RequestFrame | Gone, bytes]] = []
        for _ in range(90):
            await inside.push(piece)
            if frames := await inside.poll(0.0):
                break
    [(gone, _)] = frames
    assert (type(gone), gone.id) == (Gone, asked.id)


@pytest.mark.parametrize("language", BOTH)
def test_standard_input_that_is_a_file_is_closed_once_it_is_read(language: str, tmp_path: Path) -> None:
    """No other process can read it again through /proc."""
    given = tmp_path / "given"
    given.write_text(json.dumps(SETTINGS))
    with (
        given.open("rb") as file,
        subprocess.Popen(program_of("pull", language), stdin=file, stdout=subprocess.PIPE) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"ready")
            folder = f"/proc/{process.pid}/fd"
            assert os.readlink(f"{folder}/0") == "/dev/null"
            open_files = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
            assert str(given) not in open_files
        finally:
            process.kill()


async def test_failure_is_reported_downstream(inside: Inside) -> None:
    """The client's connection ends without the end of an answer."""
    async with inside.asked() as agent:
        [(frame, _)] = await inside.poll()
        await inside.push(
            pack("head", frame.id, status=200, reason="OK", headers=[]) + pack("fail", frame.id)
        )
        assert not (await heard(agent)).endswith(b"0\r\n\r\n")
    assert await inside.poll(0.0) == []  # it did not leave by itself


async def test_bytes_that_come_again_or_too_early(inside: Inside) -> None:
    """What is known is passed over, wherever it was cut; what leaves a gap is refused."""
    async with inside.asked() as agent:
        [(frame, _)] = await inside.poll()
        log = answer(frame.id, b"0123456789" * 100)
        with pytest.raises(TransportError, match="409"):
            await inside.push(log[1:], at=1)
        for end in [*range(0, len(log), 97), len(log), len(log)]:
            assert await inside.push(log[max(0, end - 150) : end], at=max(0, end - 150)) == end
        assert (await heard(agent, b"\r\n0\r\n\r\n")).endswith(b"0123456789" * 100 + b"\r\n0\r\n\r\n")


async def test_log_that_is_asked_for_again(inside: Inside) -> None:
    """Bytes can be had from any offset until a later one is asked for, and then no more."""
    async with inside.asked():
        [(first, _)] = await inside.poll()
        end, inside.taken = inside.taken, 0
        assert await inside.poll() == [(first, b"")]
        inside.taken = end
        assert await inside.poll(0.0) == []
        inside.taken = 0
        with pytest.raises(TransportError, match="409"):
            await inside.poll()
        inside.taken = end + 1000
        with pytest.raises(TransportError, match="409"):
            await inside.poll()


async def test_stream_gives_signs_of_life(inside: Inside) -> None:
    """Its first line is the proof, and a newer pull ends it."""
    question = Question(SECRET, "/pull?from=0&hold=1000&stream=1")
    async with inside.transport.pull(question.path, question.headers) as chunks:
        said = b""
        with anyio.fail_after(PATIENCE):
            async for chunk in chunks:
                said += chunk
                if said.count(b"\n") == 4:
                    await inside.poll(0.0)
    proof, _, rest = said.partition(b"\n")
    question.check(proof)
    assert set(rest) == {ord("\n")}


async def test_client_without_the_secret_is_refused(inside: Inside) -> None:
    """Nobody else gets anything out, nor anything in, nor learns why."""
    right = Question(SECRET, "/pull?from=0&hold=0&stream=0").headers
    wrong = Question(bytes(32), "/pull?from=0&hold=0&stream=0").headers
    other = {**right, "X-Relay-Nonce": "00"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{inside.control}", trust_env=False) as stranger:
        for headers in ({}, wrong, other, {**right, "X-Relay-Proof": "\u00e9".encode("latin-1")}):
            answered = await stranger.get("/pull?from=0&hold=0&stream=0", headers=headers)
            assert (answered.status_code, answered.content) == (401, b"")
        assert (await stranger.get("/pull?from=0&hold=9&stream=0", headers=right)).status_code == 401
        pushed = Question(SECRET, "/push?at=0&up=0", b"said")
        assert (await stranger.post(pushed.path, content=b"sais", headers=pushed.headers)).status_code == 401
        assert (
            await stranger.get("/elsewhere", headers=Question(SECRET, "/elsewhere").headers)
        ).status_code == 404


@pytest.mark.parametrize("name", ["pull.py", "forward.py", "bridge.py"])
def test_programs_are_written_in_an_old_python(name: str) -> None:
    ast.parse(
        (resources.files("swe_core.sandboxing.relay.inside") / name).read_text(), feature_version=(3, 6)
    )
