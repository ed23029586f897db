"""One command in a container: its streams, its end, its death."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import SocketStream
from docker.errors import APIError, NotFound

from swe_core.errors import SandboxDied, SandboxError
from swe_core.sandboxing.process import FedProcess
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.streams import take_frames

_CANNOT_RUN, _MISSING, _KILLED = 126, 127, 137
_GRACE = 0.1
"""Seconds after which the engine knows that a container has died whose command has."""
_REFUSED = b"OCI runtime exec failed"
_NOT_FOUND = ("executable file not found", "no such file or directory")


class DockerProcess(FedProcess):
    """A command that was started with the exec API.

    Two tasks of the sandbox serve it: `feed` feeds its standard input, `run` takes its output from the engine
    and, at the end, asks for the exit code. The engine ends the output when the command has ended and all
    who hold its streams are gone, or two seconds after it has ended. Its chunks are <= 32 KiB; the command
    blocks while as many are unread as are kept.

    Args:
        mark: The value of SWE_EXEC_ID, which marks the command's processes.
        connection: To the engine: standard input there, the output back; closed at the end.
        first: What came of the output with the engine's answer.
        death: Why the container does not run, in words; None where it does.
        kill_tree: Kills every process that carries a mark. Processes that multiply faster than they are
            killed one by one are killed with everything else in the sandbox.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        exec_id: str,
        mark: str,
        connection: SocketStream,
        first: bytearray,
        death: Callable[[], Awaitable[str | None]],
        kill_tree: Callable[[str], Awaitable[None]],
    ) -> None:
        super().__init__(container)
        self._client = client
        self._container = container
        self._exec_id = exec_id
        self._mark = mark
        self._connection = connection
        self._first = first
        self._death = death
        self._kill_tree = kill_tree

    async def kill_tree(self) -> None:
        """See `FedProcess.kill_tree`."""
        await self._kill_tree(self._mark)

    async def feed(self, stdin: bytes) -> None:
        """Send all of standard input, then its end; a command that stops reading is no error."""
        try:
            await self._connection.send(stdin)
            await self._connection.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return

    async def follow(self) -> int:
        """Take the output from the engine up to its end, then find out how the command ended."""
        async with self._connection:
            refusal = await self._take()
            refused, code = await self._exit_code(refusal)
            if refusal:
                await self.put("stderr" if refused else "stdout", refusal)
            return code

    async def _take(self) -> bytes:
        """Pass on all output. Returns it where it is but one chunk that may be the runtime's refusal."""
        data = self._first
        held = b""
        first = True
        while True:
            for stream, chunk in take_frames(data):
                if held:
                    await self.put("stdout", held)
                    held = b""
                if first and stream == "stdout" and chunk.startswith(_REFUSED):
                    held = chunk
                else:
                    await self.put(stream, chunk)
                first = False
            try:
                data += await self._connection.receive()
            except anyio.EndOfStream:
                return held
            except (anyio.BrokenResourceError, OSError) as error:
                raise SandboxDied(
                    f"the connection to the sandbox {self._container!r} broke: {reason(error)}"
                ) from None

    async def _exit_code(self, refusal: bytes) -> tuple[bool, int]:
        """Whether the runtime refused to run the command, and the exit code."""
        state = await self._ended()
        refused = bool(refusal) and not state["Pid"]
        code: int = state["ExitCode"]
        if refused:
            text = refusal.decode(errors="replace")
            missing = any(words in text for words in _NOT_FOUND) and "chdir to cwd" not in text
            code = _MISSING if missing else _CANNOT_RUN
        # By itself, by us, or with the container? Of a command that is killed, or whose container ends, while
        # it starts, the runtime may say anything: that it finds no such file, too, with a process id or none,
        # or no word besides its exit code.
        if self.condemned and (refusal or code in (_CANNOT_RUN, _MISSING, _KILLED)):
            return bool(refusal), _KILLED
        if refusal or code == _KILLED:
            await anyio.sleep(_GRACE)
            await self._check_alive()
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
            if not self.condemned:
                await self._check_alive()
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.25)

    async def _check_alive(self) -> None:
        if why := await self._death():
            raise SandboxDied(f"the sandbox {self._container!r} died while a command ran in it: {why}")
