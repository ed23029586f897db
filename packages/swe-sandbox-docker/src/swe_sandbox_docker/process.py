"""One command in a container: its streams, its end, its death."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import SocketStream
from docker.errors import APIError, NotFound

from swe_core.errors import SandboxDied, SandboxError
from swe_core.sandbox import Process, Stream
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.streams import take_frames

BUFFERED = 32
"""Chunks of output kept for a reader; the command blocks when there are more. The engine's are <= 32 KiB."""

_KILLED = 137
_GRACE = 0.1
"""Seconds after which the engine knows that a container has died whose command has."""
_REFUSED = b"OCI runtime exec failed"
_NOT_FOUND = ("executable file not found", "no such file or directory")


class DockerProcess(Process):
    """A command that was started with the exec API.

    Two tasks of the sandbox serve it: one feeds its standard input, one takes its output from the engine
    and, at the end, asks for the exit code. The engine ends the output when the command has ended and all
    who hold its streams are gone, or two seconds after it has ended.

    Args:
        mark: The value of SWE_EXEC_ID, which marks the command's processes.
        alive: Whether the container still runs.
        kill_tree: Kills every process that carries a mark.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        exec_id: str,
        mark: str,
        alive: Callable[[], Awaitable[bool]],
        kill_tree: Callable[[str], Awaitable[None]],
    ) -> None:
        self._client = client
        self._container = container
        self._exec_id = exec_id
        self._mark = mark
        self._alive = alive
        self._kill_tree = kill_tree
        self._send, self._chunks = anyio.create_memory_object_stream[tuple[Stream, bytes]](BUFFERED)
        weakref.finalize(self, self._chunks.close)  # of a process whose output nobody ever read
        self._reading = False
        self._discarded = False
        self._killed = False
        self._done = anyio.Event()
        self._end: int | SandboxError = SandboxDied(f"the sandbox {container!r} was closed")

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """See `Process.output`."""
        if self._reading:
            raise RuntimeError("the output of a process can be read only once")
        self._reading = True
        if self._discarded:
            return
        # Closed also when the reader stops early: what comes after is thrown away, so the command goes on.
        with self._chunks:
            async for chunk in self._chunks:
                yield chunk
        await self._done.wait()
        if isinstance(self._end, SandboxError):
            raise self._end

    async def wait(self) -> int:
        """See `Process.wait`."""
        await self._done.wait()
        if isinstance(self._end, SandboxError):
            raise self._end
        return self._end

    async def kill(self) -> None:
        """See `Process.kill`. Output that nobody reads yet is thrown away. Processes that multiply faster
        than they are killed one by one are killed with everything else in the sandbox."""
        if not self._reading:
            self._discarded = True
            self._chunks.close()
        self.condemn()
        await self._kill_tree(self._mark)

    def condemn(self) -> None:
        """Told before it is killed from without, so that this is not taken for the death of the sandbox."""
        self._killed = True

    async def feed(self, connection: SocketStream, stdin: bytes) -> None:
        """Send all of standard input, then its end; a command that stops reading is no error."""
        try:
            await connection.send(stdin)
            await connection.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return

    async def pump(self, connection: SocketStream, first: bytearray) -> None:
        """Take the output from the engine up to its end, then find out how the command ended."""
        try:
            async with connection:
                with self._send:
                    refusal = await self._take(connection, first)
                    refused, self._end = await self._exit_code(refusal)
                    if refusal:
                        await self._put("stderr" if refused else "stdout", refusal)
        except SandboxError as error:
            self._end = error
        finally:
            self._send.close()
            self._done.set()

    async def _take(self, connection: SocketStream, data: bytearray) -> bytes:
        """Pass on all output. Returns it where it is but one chunk that may be the runtime's refusal."""
        held = b""
        first = True
        while True:
            for stream, chunk in take_frames(data):
                if held:
                    await self._put("stdout", held)
                    held = b""
                if first and stream == "stdout" and chunk.startswith(_REFUSED):
                    held = chunk
                else:
                    await self._put(stream, chunk)
                first = False
            try:
                data += await connection.receive()
            except anyio.EndOfStream:
                return held
            except (anyio.BrokenResourceError, OSError) as error:
                raise SandboxDied(
                    f"the connection to the sandbox {self._container!r} broke: {reason(error)}"
                ) from None

    async def _put(self, stream: Stream, chunk: bytes) -> None:
        try:
            await self._send.send((stream, chunk))
        except anyio.BrokenResourceError:
            return  # nobody wants it any more

    async def _exit_code(self, refusal: bytes) -> tuple[bool, int]:
        """Whether the runtime refused to run the command, and the exit code."""
        state = await self._ended()
        refused = bool(refusal) and not state["Pid"]
        code: int = state["ExitCode"]
        if refused:
            text = refusal.decode(errors="replace")
            missing = any(words in text for words in _NOT_FOUND) and "chdir to cwd" not in text
            code = 127 if missing else 126
        # By itself, by us, or with the container? Of a command that is killed, or whose container ends, while
        # it starts, the runtime may say anything: that it finds no such file, too, with a process id or none.
        if refusal or code == _KILLED:
            if self._killed:
                return bool(refusal), _KILLED
            await anyio.sleep(_GRACE)
            if not await self._alive():
                raise self._died()
        return refused, code

    async def _ended(self) -> dict[str, Any]:
        """The engine's account of the command once it has ended.

        Its streams have, so it has as a rule, or will at once. A command that closed its own streams goes
        on, and the engine has no call to wait for it: only then is it asked again and again.
        """
        pause = 0.002
        while True:
            try:
                state: dict[str, Any] = await self._client.call(self._client.api.exec_inspect, self._exec_id)
            except NotFound:  # forgotten with the container's last start, or with the container
                state = {"Running": False, "ExitCode": _KILLED, "Pid": None}
            except APIError as error:
                raise SandboxError(
                    f"cannot learn how a command in the sandbox {self._container!r} ended: {reason(error)}"
                ) from None
            if not state["Running"] and state["ExitCode"] is not None:
                return state
            if not self._killed and not await self._alive():
                raise self._died()
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.25)

    def _died(self) -> SandboxDied:
        return SandboxDied(f"the sandbox {self._container!r} died while a command ran in it")
