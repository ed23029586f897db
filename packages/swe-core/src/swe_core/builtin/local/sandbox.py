"""LocalSandbox and its processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path

from swe_core.api.sandbox import Process, Sandbox, SandboxSpec, Stream
from swe_core.builtin.local.bwrap import SOCKET_DIR
from swe_core.builtin.local.control import Control, sealed
from swe_core.sandboxing.relay import reach_by_socket

_CHUNK = 65536


class LocalProcess(Process):
    """A command that the supervisor runs, with pipes to this process for its output.

    Args:
        ended: The exit code to come.
        pipes: The reading ends, non-blocking.
    """

    def __init__(
        self, control: Control, number: int, ended: asyncio.Future[int], pipes: dict[int, Stream]
    ) -> None:
        self._control = control
        self._number = number
        self._ended = ended
        self._pipes = pipes
        self._changed = asyncio.Event()
        ended.add_done_callback(lambda _: self._changed.set())

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        try:
            while self._pipes and not self._ended.done():
                self._changed.clear()
                chunks = self._read_available()
                if not chunks and self._pipes:
                    await self._wait_for_change()
                for chunk in chunks:
                    yield chunk
            # The command's last words are in the pipes by now. What comes later is its children's.
            for fd, stream in list(self._pipes.items()):
                left = _readable_bytes(fd)
                while left > 0 and (data := os.read(fd, min(left, _CHUNK))):
                    left -= len(data)
                    yield stream, data
        finally:
            self.close()
        await self.wait()

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        await self._control.kill(self._number)

    def close(self) -> None:
        """Close the reading ends; what writes to them now gets SIGPIPE."""
        while self._pipes:
            os.close(self._pipes.popitem()[0])

    def _read_available(self) -> list[tuple[Stream, bytes]]:
        chunks: list[tuple[Stream, bytes]] = []
        for fd, stream in list(self._pipes.items()):
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                continue
            if data:
                chunks.append((stream, data))
            else:
                del self._pipes[fd]
                os.close(fd)
        return chunks

    async def _wait_for_change(self) -> None:
        loop = asyncio.get_running_loop()
        watched = list(self._pipes)
        for fd in watched:
            loop.add_reader(fd, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            for fd in watched:
                loop.remove_reader(fd)


def _readable_bytes(fd: int) -> int:
    """Bytes in a pipe right now."""
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


class LocalSandbox(Sandbox):
    """One open local sandbox.

    Args:
        id: The name of its directory on the host.
        socket_dir: The host directory that is SOCKET_DIR inside.
    """

    def __init__(
        self, id: str, spec: SandboxSpec, control: Control, env: Mapping[str, str], socket_dir: Path
    ) -> None:
        self.id = id
        self.spec = spec
        self._control = control
        self._env = env
        self._socket_dir = socket_dir
        self._processes: list[LocalProcess] = []

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        request = self._request(argv, cwd or self.spec.workdir, {**self._env, **(env or {})})
        passed: list[int] = []  # the command's ends, closed here once they are sent
        pipes: dict[int, Stream] = {}
        try:
            passed.append(os.open(os.devnull, os.O_RDONLY) if stdin is None else sealed(stdin))
            streams: tuple[Stream, ...] = ("stdout", "stderr")
            for stream in streams:
                reading, writing = os.pipe()
                passed.append(writing)
                pipes[reading] = stream
                os.set_blocking(reading, False)
            number, ended = await self._control.start(request, passed)
        except BaseException:  # also cancellation: clean up, then raise
            for fd in pipes:
                os.close(fd)
            raise
        finally:
            for fd in passed:
                os.close(fd)
        process = LocalProcess(self._control, number, ended, pipes)
        self._processes = [one for one in self._processes if one._pipes]
        self._processes.append(process)
        return process

    def _request(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> dict[str, object]:
        return {"argv": list(argv), "cwd": cwd, "env": dict(env)}

    async def kill_all(self) -> None:
        await self._control.kill_all()

    async def protect(self, paths: Sequence[str]) -> bool:
        """See `Sandbox.protect`. Each is a mount of its own, which is read-only."""
        if not self.spec.write_protect:
            return False
        await self._control.protect(paths)
        return True

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        if self.spec.network == "full":
            return nullcontext(endpoint)  # the host's own network
        return reach_by_socket(self, endpoint, self._socket_dir, SOCKET_DIR)

    def close(self) -> None:
        """Close what commands left open on the host."""
        for process in self._processes:
            with suppress(OSError):
                process.close()
