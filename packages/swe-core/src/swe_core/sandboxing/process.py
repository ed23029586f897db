"""FedProcess: a process whose output a task of the sandbox feeds. For providers."""

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
    """A command whose output a task of its sandbox takes from somewhere, and that ends when the task does.

    A subclass says in `follow` where output and exit code come from, and in `kill_tree` how the command is
    killed. Whoever starts the command gives `run` to a task that is cancelled when the sandbox closes, not
    before:

        process = MyProcess(self.id, ...)
        self._tasks.start_soon(process.run)
        return process

    Args:
        sandbox: The sandbox's id, for messages.

    Attributes:
        condemned: Whether we kill it. Set it as well before the command is killed from without, say with all
            others: then `follow` can tell that from the death of the sandbox.
    """

    def __init__(self, sandbox: str) -> None:
        self.condemned = False
        self._send, self._chunks = anyio.create_memory_object_stream[tuple[Stream, bytes]](BUFFERED)
        weakref.finalize(self, self._chunks.close)  # of a process whose output nobody ever read
        self._reading = False
        self._discarded = False
        self._done = anyio.Event()
        self._end: int | SandboxError = SandboxDied(f"the sandbox {sandbox!r} was closed")

    @abstractmethod
    async def follow(self) -> int:
        """Pass all output on with `put`, and return the exit code once the command has ended.

        What it raises besides a `SandboxError` is a defect, and leaves `run` as it is.

        Raises:
            SandboxError: How the command ended cannot be known: the sandbox died, or the command could not be
                run. Whoever reads or waits is told, each time.
        """

    @abstractmethod
    async def kill_tree(self) -> None:
        """Kill the command and every process it started; nothing where they have ended. `follow` goes on, and
        returns 137."""

    @property
    def over(self) -> bool:
        """Whether it has ended, or its sandbox has."""
        return self._done.is_set()

    async def run(self) -> None:
        """Follow it to its end; for one task of the sandbox. If that is cancelled, the sandbox was closed."""
        try:
            self._end = await self.follow()
        except SandboxError as error:
            self._end = error
        finally:
            self._send.close()
            self._done.set()

    async def put(self, stream: Stream, chunk: bytes) -> None:
        """Pass on a chunk of output; for `follow`. Waits while `BUFFERED` chunks are unread, and throws away
        what nobody wants any more."""
        try:
            await self._send.send((stream, chunk))
        except anyio.BrokenResourceError:
            return

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """See `Process.output`. Whoever stops early throws the rest away, and the command goes on."""
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
        """See `Process.wait`."""
        await self._done.wait()
        if isinstance(self._end, SandboxError):
            raise self._end
        return self._end

    async def kill(self) -> None:
        """See `Process.kill`. Output that nobody reads yet is thrown away."""
        if not self._reading:
            self._discarded = True
            self._chunks.close()
        self.condemned = True
        await self.kill_tree()
