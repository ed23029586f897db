"""Lifeline: the connection to a container's first process, which keeps the container running."""

from __future__ import annotations

import anyio
from anyio.abc import SocketStream, TaskGroup

from swe_core.errors import SandboxDied
from swe_sandbox_docker.client import Client, reason
from swe_sandbox_docker.container import READY
from swe_sandbox_docker.streams import take_frames

_MAX_WORDS = 4096  # of a shell's output, which code inside may have replaced


class ShellEnded(Exception):
    """The shell that keeps a container running ended at once; the message is its output.

    Args:
        code: The container's exit code, above 128 after a signal.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Lifeline:
    """Holds the standard input of a container's shell, which ends when this input is closed.

    When this program ends, even by SIGKILL, the kernel closes its connections. The engine then closes the
    shell's standard input, and with the container's first process every process inside ends.

    Args:
        tasks: Task group of the task that holds the connection. The container ends with this task.
    """

    def __init__(self, client: Client, container: str, tasks: TaskGroup) -> None:
        self._client = client
        self._container = container
        self._tasks = tasks

    async def start(self) -> bytes:
        """Start the container, wait for its shell, hold the connection and return the shell's output.

        Raises:
            ShellEnded: The shell ended.
            docker.errors.APIError: The engine refused.
            SandboxError: The engine does not answer.
        """
        streams = "stream=1&stdin=1&stdout=1&stderr=1"
        connection, data = await self._client.hijack(f"/containers/{self._container}/attach?{streams}", {})
        try:
            await self._client.call(self._client.api.start, self._container)
            return await self._hear(connection, data)
        finally:
            # Held even without output in time: the agent may have replaced the shell, and it runs.
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
    """Keep the connection until the container ends, and drop the output of its first process.

    The agent may replace the shell with one that prints much, and a stopping container waits for readers.
    """
    async with connection:
        try:
            while True:
                await connection.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
