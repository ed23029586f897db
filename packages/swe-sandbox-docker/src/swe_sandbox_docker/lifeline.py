"""What keeps a container up: a connection of this program to the container's first process."""

from __future__ import annotations

import anyio
from anyio.abc import SocketStream, TaskGroup

from swe_core.errors import SandboxDied
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.container import READY
from swe_sandbox_docker.streams import take_frames

_MAX_WORDS = 4096  # of a shell; one that code inside put there may say more


class ShellEnded(Exception):
    """The shell that keeps a container up ended at once; the message is what it said.

    Args:
        code: The container's exit code, over 128 where a signal ended it.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Lifeline:
    """The standard input of a container's shell, which reads it until it is closed, and then ends.

    However this program ends, be it by SIGKILL, the kernel closes its connections. The engine then closes the
    shell's standard input, and with the container's first process all that runs inside ends.

    Args:
        tasks: Where the task runs that holds the connection; the container ends with it.
    """

    def __init__(self, client: Client, container: str, tasks: TaskGroup) -> None:
        self._client = client
        self._container = container
        self._tasks = tasks

    async def start(self) -> bytes:
        """Start the container, and hold it once its shell has said that it runs. Returns what it said.

        Raises:
            ShellEnded: It ended instead.
            docker.errors.APIError: The engine said no.
            SandboxError: The engine does not answer, or not any more.
        """
        streams = "stream=1&stdin=1&stdout=1&stderr=1"
        connection, data = await self._client.hijack(f"/containers/{self._container}/attach?{streams}", {})
        try:
            await self._client.call(self._client.api.start, self._container)
            return await self._hear(connection, data)
        finally:
            # Held also where the shell says nothing in time: it may be one of the agent's, which runs.
            self._tasks.start_soon(_hold, connection)

    async def _hear(self, connection: SocketStream, data: bytearray) -> bytes:
        said = b""
        while READY not in said:
            try:
                data += await connection.receive()
            except anyio.EndOfStream:
                ended = await self._client.call(self._client.api.wait, self._container)
                words = " ".join(said.decode(errors="replace").split()) or "it ended without a word"
                raise ShellEnded(words, ended["StatusCode"]) from None
            except anyio.BrokenResourceError as error:
                raise SandboxDied(
                    f"the connection to the sandbox {self._container!r} broke: {reason(error)}"
                ) from None
            said = (said + b"".join(chunk for _, chunk in take_frames(data)))[-_MAX_WORDS:]
        return said


async def _hold(connection: SocketStream) -> None:
    """Keep the connection until the container ends. What its first process says is read and dropped: a shell
    of the agent's may say much, and the engine waits for readers when it stops a container."""
    async with connection:
        try:
            while True:
                await connection.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
