"""One command in a container."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from anyio.abc import ByteStream
from docker.errors import APIError, NotFound

from swe_core.errors import SandboxDied, SandboxError
from swe_core.sandboxing.process import FedProcess
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.streams import take_frames

_CANNOT_RUN, _MISSING, _KILLED = 126, 127, 137
_GRACE = 0.5
"""Seconds after the death of a command until the engine reports the death of its container."""
_REFUSED = b"OCI runtime exec failed"
_NOT_FOUND = ("executable file not found", "no such file or directory")


class Death(NamedTuple):
    """Why a container does not run, and the error to raise: `SandboxBroken` if code inside is the cause."""

    why: str
    kind: type[SandboxError] = SandboxDied


class DockerProcess(FedProcess):
    """A command that was started with the exec API.

    Two tasks of the sandbox serve it. `feed` sends its standard input. `run` reads its output and then its
    exit code from the engine. The engine ends the output when the command and all holders of its streams have
    ended, or two seconds after the end of the command. Chunks have at most 32 KiB. The command blocks while
    the buffer of chunks is full.

    Args:
        mark: The value of SWE_EXEC_ID, which marks the command's processes.
        connection: The connection to the engine for standard input and output. `follow` closes it.
        first: Output that arrived with the head of the engine's reply.
        death: Returns why the container does not run, or None if it runs.
        kill_tree: Kills every process that carries a mark. If processes multiply faster than they are killed
            one by one, it kills everything in the sandbox.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        exec_id: str,
        mark: str,
        connection: ByteStream,
        first: bytearray,
        death: Callable[[], Awaitable[Death | None]],
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
        """Send all of standard input and close it. A command that stops reading is no error."""
        try:
            await self._connection.send(stdin)
            await self._connection.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return

    async def follow(self) -> int:
        """Read the output from the engine to its end, then return the exit code."""
        async with self._connection:
            refusal = await self._take()
            refused, code = await self._exit_code(refusal)
            if refusal:
                await self.put("stderr" if refused else "stdout", refusal)
            return code

    async def _take(self) -> bytes:
        """Pass on all output, except a single chunk that may be the runtime's refusal. Return that one."""
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
                death = await self._death() or Death(reason(error))
                raise death.kind(
                    f"the connection to the sandbox {self._container!r} broke: {death.why}"
                ) from None

    async def _exit_code(self, refusal: bytes) -> tuple[bool, int]:
        """Return whether the runtime refused to run the command, and the exit code."""
        state = await self._ended()
        refused = bool(refusal) and not state["Pid"]
        code: int = state["ExitCode"]
        if refused:
            text = refusal.decode(errors="replace")
            missing = any(words in text for words in _NOT_FOUND) and "chdir to cwd" not in text
            code = _MISSING if missing else _CANNOT_RUN
        # If the command is killed or the container ends while the command starts, the runtime's report is
        # arbitrary: a missing file, with or without a process id, or only an exit code.
        if self.condemned and (refusal or code in (_CANNOT_RUN, _MISSING, _KILLED)):
            return bool(refusal), _KILLED
        if refusal or code == _KILLED:
            await anyio.sleep(_GRACE)
            await self._check_alive()
        return refused, code

    async def _ended(self) -> dict[str, Any]:
        """Wait for the end of the command, and return the engine's description of it.

        As its streams have ended, the command usually has, too. Only a command that closed its own streams
        still runs. The engine has no call to wait for it, so this polls.
        """
        pause = 0.002
        while True:
            try:
                state: dict[str, Any] = await self._client.call(self._client.api.exec_inspect, self._exec_id)
            except NotFound:  # the container was restarted or removed
                state = {"Running": False, "ExitCode": _KILLED, "Pid": None}
            except APIError as error:
                raise SandboxError(
                    f"cannot get the exit code of a command in the sandbox {self._container!r}: "
                    f"{reason(error)}"
                ) from None
            if not state["Running"] and state["ExitCode"] is not None:
                return state
            if not self.condemned:
                await self._check_alive()
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.25)

    async def _check_alive(self) -> None:
        if death := await self._death():
            raise death.kind(f"the sandbox {self._container!r} died while a command ran in it: {death.why}")
