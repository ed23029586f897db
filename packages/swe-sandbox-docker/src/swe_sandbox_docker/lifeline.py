"""The connection of this program to a container's first process, which keeps the container running."""

from __future__ import annotations

import anyio
from anyio.abc import ByteStream, TaskGroup

from swe_core.errors import SandboxDied
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.container import READY
from swe_sandbox_docker.streams import take_frames

_MAX_WORDS = 4096  # kept from the shell's output, since code inside may have replaced the shell


class ShellEnded(Exception):
    """A container's first shell ended at once. The message is the shell's output.

    Args:
        code: The container's exit code, above 128 if a signal ended it.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Lifeline:
    """The standard input of a container's first shell. The shell ends when it is closed.

    When this program ends, even by SIGKILL, the kernel closes its connections. The engine then closes the
    shell's standard input, and all processes inside end with the container's first process.

    Args:
        tasks: The task group of the task that holds the connection. The container ends with that task.
    """

    def __init__(self, client: Client, container: str, tasks: TaskGroup) -> None:
        self._client = client
        self._container = container
        self._tasks = tasks

    async def start(self) -> bytes:
        """Start the container, wait until its shell prints `READY`, and return the shell's output.

        Raises:
            ShellEnded: The shell ended instead.
            docker.errors.APIError: The engine refuses.
            SandboxError: The engine does not answer.
        """
        streams = "stream=1&stdin=1&stdout=1&stderr=1"
        connection, data = await self._client.hijack(f"/containers/{self._container}/attach?{streams}", {})
        try:
            await self._client.call(self._client.api.start, self._container)
            return await self._hear(connection, data)
        finally:
            # Hold it even if the shell prints nothing: the agent may have replaced it with a silent one.
            self._tasks.start_soon(_hold, connection)

    async def _hear(self, connection: ByteStream, data: bytearray) -> bytes:
        said = b""
        while READY not in said:
            try:
                data += await connection.receive()
            except anyio.EndOfStream:
                ended = await self._client.call(self._client.api.wait, self._container)
                words = " ".join(said.decode(errors="replace").split()) or "it ended without output"
                raise ShellEnded(words, ended["StatusCode"]) from None
            except anyio.BrokenResourceError as error:
                await self._client.call(self._client.api.inspect_container, self._container)
                raise SandboxDied(
                    f"the connection to the sandbox {self._container!r} broke: {reason(error)}"
                ) from None
            said = (said + b"".join(chunk for _, chunk in take_frames(data)))[-_MAX_WORDS:]
        return said


async def _hold(connection: ByteStream) -> None:
    """Keep the connection open until the container ends.

    The output of the first process is read and dropped. The agent may have replaced the shell with one that
    prints much, and the engine waits for readers when it stops a container.
    """
    async with connection:
        try:
            while True:
                await connection.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
