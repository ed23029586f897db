"""FedProcess: a process whose output a task of the sandbox provides. For providers."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator

import anyio

from swe_core.api.sandbox import Process, Stream
from swe_core.errors import SandboxDied, SandboxError

BUFFERED = 32
"""Chunks of output that are kept for a reader; with more, `FedProcess.put` waits."""


class FedProcess(Process):
    """A command whose output a task of its sandbox provides. The command ends when the task ends.

    A subclass implements `follow` (output and exit code) and `kill_tree`. The sandbox runs `run` in a task
    that it cancels when it closes, not before:

        process = MyProcess(self.id, ...)
        self._tasks.start_soon(process.run)
        return process

    Args:
        sandbox: The sandbox's id, for messages.

    Attributes:
        condemned: Whether we kill the command. Set it before a command is killed from outside, so that
            `follow` can tell the kill from the death of the sandbox.
    """

    def __init__(self, sandbox: str) -> None:
        self.condemned = False
        self._send, self._chunks = anyio.create_memory_object_stream[tuple[Stream, bytes]](BUFFERED)
        weakref.finalize(self, self._chunks.close)  # of a process whose output was never read
        self._reading = False
        self._discarded = False
        self._done = anyio.Event()
        self._end: int | SandboxError = SandboxDied(f"the sandbox {sandbox!r} was closed")

    @abstractmethod
    async def follow(self) -> int:
        """Pass all output on with `put`, and return the exit code once the command has ended.

        Other errors than `SandboxError` are defects, and leave `run` unchanged.

        Raises:
            SandboxError: The end of the command is unknown: the sandbox died, or the command could not be
                run. Every reader and waiter gets this error.
        """

    @abstractmethod
    async def kill_tree(self) -> None:
        """Kill the command and all its processes, if they run. `follow` continues, and returns 137."""

    @property
    def over(self) -> bool:
        """Whether the command or its sandbox has ended."""
        return self._done.is_set()

    async def run(self) -> None:
        """Follow the command to its end. Cancelling this task means that the sandbox was closed."""
        try:
            self._end = await self.follow()
        except SandboxError as error:
            self._end = error
        finally:
            self._send.close()
            self._done.set()

    async def put(self, stream: Stream, chunk: bytes) -> None:
        """Pass on a chunk of output. Wait while `BUFFERED` chunks are unread; drop it without a reader."""
        try:
            await self._send.send((stream, chunk))
        except anyio.BrokenResourceError:
            return

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """See `Process.output`. A reader that stops early drops the rest, and the command continues."""
        if self._reading:
            raise RuntimeError("the output of a process can be read only once")
        self._reading = True
        if self._discarded:
            return
        with self._chunks:
            async for chunk in self._chunks:
                yield chunk
        await self.wait()

    async def wait(self) -> int:
        await self._done.wait()
        if isinstance(self._end, SandboxError):
            raise self._end
        return self._end

    async def kill(self) -> None:
        """See `Process.kill`. Unread output is dropped."""
        if not self._reading:
            self._discarded = True
            self._chunks.close()
        self.condemned = True
        await self.kill_tree()
