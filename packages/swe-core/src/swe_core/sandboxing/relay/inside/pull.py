"""Runs inside a sandbox: requests of an agent wait here until a host has pulled them and pushed the answers.

Its settings are one JSON object on stdin: `secret` (hex), `port` (for the agent; 0 takes a free one), `tick`
(seconds) and `bodies` (bytes of concurrent requests). It listens on 127.0.0.1 only, prints
`ready PORT CONTROL_PORT`, and runs until it is killed. docs/internals/relay.md has the protocol.
Standard library of Python >= 3.6 only: the sandbox's own Python runs it, and newer annotations are quoted.
"""
# ruff: noqa: UP031, UP041 (what is new was not there in 3.6)

import asyncio
import hmac
import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes a noticeable part of the start
    from collections.abc import Awaitable, Callable
    from typing import Any

    Respond = Callable[["Incoming", "Request", asyncio.StreamWriter], Awaitable[bool]]

CHUNK = 65536
BATCH = 1 << 20
MAX_HEAD = 65536
MAX_BODY = 32 << 20
MAX_UNREAD = 64 << 20
MAX_AT_ONCE = 64
LINGER = 5.0
WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
START = re.compile("(" + WORD + r") (/[!-~]*) HTTP/1\.([01])")
HEADER = re.compile("(" + WORD + r"):([\t -~\x80-\xff]*)")
REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    409: "Conflict",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
}


class Ended(Exception):
    """The other side has closed its connection."""


class Refused(Exception):
    """The request is refused; the argument is the HTTP status."""


class Incoming:
    """Read one connection with look-ahead, which shows whether the client leaves while it waits."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.reader = reader
        self.data = bytearray()

    async def more(self) -> None:
        data = await self.reader.read(CHUNK)
        if not data:
            raise Ended
        self.data += data

    def take(self, count: int) -> bytes:
        taken = bytes(self.data[:count])
        del self.data[:count]
        return taken

    async def exactly(self, count: int) -> bytes:
        while len(self.data) < count:
            await self.more()
        return self.take(count)

    async def until(self, mark: bytes, limit: int) -> bytes:
        while mark not in self.data:
            if len(self.data) > limit:
                raise Refused(431)
            await self.more()
        end = self.data.index(mark)
        if end > limit:
            raise Refused(431)
        return self.take(end + len(mark))[:end]

    async def closed(self) -> None:
        """Return once the other side has closed, or sends so much that it is not waiting for an answer."""
        try:
            while len(self.data) <= MAX_HEAD:
                await self.more()
        except (Ended, OSError):
            pass

    async def request(self) -> "Request":
        """Read the head of the next request."""
        head = await self.until(b"\r\n\r\n", MAX_HEAD)
        lines = head.lstrip(b"\r\n").decode("latin-1").split("\r\n")
        start = START.fullmatch(lines.pop(0))
        found = filter(None, map(HEADER.fullmatch, lines))
        headers = [(header.group(1), header.group(2).strip(" \t")) for header in found]
        if not start or len(headers) < len(lines):
            raise Refused(400)
        return Request(start.group(1), start.group(2), start.group(3) == "0", headers)

    async def body(self, request: "Request", limit: int) -> bytes:
        """Read the body of that request."""
        if "transfer-encoding" in request.named:
            if request.named["transfer-encoding"].lower() != "chunked":
                raise Refused(501)
            return await self.chunks(limit)
        length = request.named.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,18}", length):
            raise Refused(400)
        if int(length) > limit:
            raise Refused(413)
        return await self.exactly(int(length))

    async def chunks(self, limit: int) -> bytes:
        parts = []
        while True:
            size = (await self.until(b"\r\n", 1024)).partition(b";")[0].strip()
            if not re.fullmatch(b"[0-9a-fA-F]{1,16}", size):
                raise Refused(400)
            length = int(size, 16)
            limit -= length
            if limit < 0:
                raise Refused(413)
            if not length:
                break
            parts.append(await self.exactly(length))
            if await self.exactly(2) != b"\r\n":
                raise Refused(400)
        while await self.until(b"\r\n", MAX_HEAD):
            pass  # trailers
        return b"".join(parts)


class Request:
    """The head of a request."""

    def __init__(self, method: str, target: str, old: bool, headers: "list[tuple[str, str]]") -> None:
        self.method = method
        self.target = target
        self.old = old  # HTTP/1.0
        self.headers = headers
        self.named = {name.lower(): value for name, value in headers}
        self.keep = not old and "close" not in self.named.get("connection", "").lower()


class Answer:
    """The answer to one client, written as frames arrive."""

    def __init__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self.writer = writer
        self.chunked = False
        self.keep = request.keep
        self.done = asyncio.Event()

    def take(self, frame: "dict[str, Any]", payload: bytes) -> None:
        if frame["kind"] == "head":
            self.head(frame["status"], frame["reason"], frame["headers"])
        elif frame["kind"] == "data":
            self.data(payload)
        elif frame["kind"] == "end":
            if self.chunked:
                self.writer.write(b"0\r\n\r\n")
            self.done.set()
        else:
            self.fail()

    def head(self, status: int, reason: str, headers: "list[list[str]]") -> None:
        bare = self.request.method == "HEAD" or status in (204, 304)
        sized = bare or any(name.lower() == "content-length" for name, _ in headers)
        self.chunked = not sized and not self.request.old
        self.keep = self.keep and (sized or self.chunked)
        lines = ["HTTP/1.1 %d %s" % (status, reason)]
        lines += ["%s: %s" % (name, value) for name, value in headers]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        if not self.keep:
            lines.append("Connection: close")
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def data(self, payload: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(payload), payload) if self.chunked else payload)
        if self.writer.transport.get_write_buffer_size() > MAX_UNREAD:
            self.writer.transport.abort()  # as if the client had left

    def fail(self) -> None:
        """End the connection early."""
        self.keep = False
        self.writer.transport.abort()
        self.done.set()


class Relay:
    """Both servers and the data between them.

    `up` is a log of bytes that the host reads from any offset until it acknowledges them; `have` is the
    offset in the host's log up to which this side has read.
    """

    def __init__(self, secret: bytes, tick: float, bodies: int) -> None:
        self.secret = secret
        self.tick = tick
        self.bodies = bodies
        self.up = bytearray()
        self.base = 0
        self.have = 0
        self.down = bytearray()
        self.answers = {}  # type: dict[int, Answer]
        self.number = 0
        self.places = asyncio.Semaphore(MAX_AT_ONCE)
        self.held = 0
        self.turn = asyncio.Lock()
        self.freed = asyncio.Event()
        self.current = object()
        self.news = asyncio.Event()

    async def agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.serve(reader, writer, self.ask)

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.serve(reader, writer, self.command)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, respond: "Respond"
    ) -> None:
        incoming = Incoming(reader)
        try:
            keep = True
            while keep:
                keep = await respond(incoming, await incoming.request(), writer)
        except Refused as refused:
            self.reply(writer, refused.args[0], b"", False)
            await self.linger(incoming, writer)
        except (Ended, OSError):
            pass
        finally:
            writer.close()

    async def linger(self, incoming: Incoming, writer: asyncio.StreamWriter) -> None:
        """Let a client that still sends read the refusal."""

        async def discard() -> None:
            while True:
                await incoming.more()
                incoming.data.clear()

        try:
            await writer.drain()
            writer.write_eof()
            await asyncio.wait_for(discard(), LINGER)
        except (Ended, OSError, asyncio.TimeoutError):
            pass

    def reply(self, writer: asyncio.StreamWriter, status: int, body: bytes, keep: bool) -> None:
        head = "HTTP/1.1 %d %s\r\nContent-Length: %d\r\n%s\r\n"
        close = "" if keep else "Connection: close\r\n"
        writer.write((head % (status, REASONS.get(status, "OK"), len(body), close)).encode() + body)

    # The agent's side

    async def ask(self, incoming: Incoming, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Handle one request of an agent, from its head to the end of its answer."""
        async with self.places:
            if request.named.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await incoming.body(request, MAX_BODY)
            left = asyncio.ensure_future(incoming.closed())
            await self.admit(len(body))
            await asyncio.sleep(0)  # to notice a client that left while it waited for a place
            if left.done():  # the host never sees it: its client may have sent it again
                self.held -= len(body)
                self.freed.set()
                return False
            self.number += 1
            number = self.number
            frame = {"kind": "request", "id": number, "method": request.method, "path": request.target}
            answer = self.answers[number] = Answer(request, writer)
            self.tell(dict(frame, headers=request.headers), body)
            done = asyncio.ensure_future(answer.done.wait())
            try:
                await asyncio.wait([left, done], return_when=asyncio.FIRST_COMPLETED)
            finally:
                left.cancel()
                done.cancel()
                await asyncio.wait([left, done])  # or two would read from one stream
                del self.answers[number]
                self.held -= len(body)
                self.freed.set()
            if not answer.done.is_set():
                self.tell({"kind": "gone", "id": number})
                writer.transport.abort()
                return False
        if answer.keep:
            await writer.drain()
        return answer.keep

    async def admit(self, size: int) -> None:
        """Wait until a body of that size may be sent, in order, so that a big one does not wait for ever."""
        async with self.turn:
            while self.held and self.held + size > self.bodies:
                self.freed.clear()
                await self.freed.wait()
            self.held += size

    def tell(self, frame: "dict[str, Any]", payload: bytes = b"") -> None:
        self.up += json.dumps(dict(frame, n=len(payload))).encode() + b"\n"
        self.up += payload
        self.news.set()

    # The host's side

    def signature(self, role: str, nonce: str, path: str, body: bytes = b"") -> str:
        said = "\n".join([role, nonce, path, ""]).encode("latin-1")
        return hmac.new(self.secret, said + body, "sha256").hexdigest()

    async def command(self, incoming: Incoming, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Handle one request of the host."""
        body = await incoming.body(request, 2 * BATCH)
        nonce = request.named.get("x-relay-nonce", "")
        proof = request.named.get("x-relay-proof", "").encode("latin-1")
        if not hmac.compare_digest(self.signature("host", nonce, request.target, body).encode(), proof):
            raise Refused(401)
        path, _, query = request.target.partition("?")
        values = dict(pair.partition("=")[::2] for pair in query.split("&"))
        if path == "/push":
            said = self.push(int(values["at"]), int(values["up"]), body)
        elif path == "/pull":
            start, hold = int(values["from"]), float(values["hold"])
            self.acknowledge(start)
            if values["stream"] == "1":
                opening = self.signature("relay", nonce, request.target).encode() + b"\n"
                await self.stream(opening, start, hold, writer)
                return False
            said = await self.poll(start, hold)
        else:
            raise Refused(404)
        opening = self.signature("relay", nonce, request.target, said).encode() + b"\n"
        self.reply(writer, 200, opening + said, request.keep)
        await writer.drain()
        return request.keep

    def acknowledge(self, offset: int) -> None:
        if offset > self.base + len(self.up):
            raise Refused(409)
        if offset > self.base:
            del self.up[: offset - self.base]
            self.base = offset

    def push(self, start: int, acknowledged: int, body: bytes) -> bytes:
        """Append the new bytes of the host's log, which `body` holds from `start` on."""
        self.acknowledge(acknowledged)
        if start > self.have:
            raise Refused(409)
        new = body[self.have - start :]
        self.have += len(new)
        self.down += new
        while True:
            end = self.down.find(b"\n")
            if end < 0:
                break
            frame = json.loads(self.down[:end].decode())
            if len(self.down) < end + 1 + frame["n"]:
                break
            payload = bytes(self.down[end + 1 : end + 1 + frame["n"]])
            del self.down[: end + 1 + frame["n"]]
            if frame["id"] in self.answers:  # else its client has left
                self.answers[frame["id"]].take(frame, payload)
        return b"%d" % self.have

    def read(self, start: int) -> bytes:
        if start < self.base:
            raise Refused(409)
        return bytes(self.up[start - self.base : start - self.base + BATCH])

    async def changed(self, seconds: float) -> bool:
        """Wait for news for at most that many seconds."""
        self.news.clear()
        try:
            await asyncio.wait_for(self.news.wait(), max(seconds, 0))
        except asyncio.TimeoutError:
            return False
        return True

    def begin(self) -> object:
        """Start a pull, which ends any other."""
        mine = self.current = object()
        self.news.set()
        return mine

    async def stream(self, opening: bytes, start: int, hold: float, writer: asyncio.StreamWriter) -> None:
        """Stream the log from `start` on as it grows. A sign of life is an empty line of the log itself."""
        data = self.read(start)
        mine = self.begin()
        loop = asyncio.get_event_loop()
        end = loop.time() + hold
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n")
        writer.write(b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n")
        writer.write(b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(opening), opening))
        while True:
            if data:
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
                start += len(data)
            elif loop.time() >= end:
                break
            elif not await self.changed(min(self.tick, end - loop.time())) and self.current is mine:
                self.up += b"\n"
            if self.current is not mine:
                break
            data = self.read(start)
        writer.write(b"0\r\n\r\n")

    async def poll(self, start: int, hold: float) -> bytes:
        """Return the log from `start` on, as soon as there is any."""
        mine = self.begin()
        loop = asyncio.get_event_loop()
        end = loop.time() + hold
        while self.current is mine and loop.time() < end and not self.read(start):
            await self.changed(end - loop.time())
        if self.current is mine and not self.read(start):
            self.up += b"\n"
        return self.read(start)


async def main(settings: "dict[str, Any]") -> "list[asyncio.AbstractServer]":
    relay = Relay(bytes.fromhex(settings["secret"]), settings["tick"], settings["bodies"])
    agent = await asyncio.start_server(relay.agent, "127.0.0.1", settings["port"], backlog=1024)
    control = await asyncio.start_server(relay.control, "127.0.0.1", 0, backlog=1024)
    ports = [server.sockets[0].getsockname()[1] for server in (agent, control)]
    sys.stdout.write("ready %d %d\n" % tuple(ports))
    sys.stdout.flush()
    return [agent, control]


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    settings = json.loads(sys.stdin.read())
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)  # where it is a file, others could read it through /proc
    servers = loop.run_until_complete(main(settings))
    loop.run_forever()
