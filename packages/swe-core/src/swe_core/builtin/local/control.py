"""The host's connection to a supervisor: it sends requests and receives the ends of commands."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio

from swe_core.errors import SandboxBroken, SandboxDied, SandboxError

_MESSAGE = 4096
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def sealed(data: bytes) -> int:
    """Return the descriptor of a sealed anonymous file; the caller closes it."""
    fd = os.memfd_create("swe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:  # also cancellation: clean up, then raise
        os.close(fd)
        raise
    return fd


class Control:
    """The connection to one supervisor, used by one event loop.

    Args:
        end: The host's end of the SOCK_SEQPACKET pair.
        stderr: The file that the supervisor and bubblewrap print to.
        starved: Returns whether code inside has used up the sandbox's memory. Nothing else that it does ends
            the supervisor.
    """

    def __init__(
        self,
        end: socket.socket,
        sandbox_id: str,
        stderr: Path,
        starved: Callable[[], bool] = lambda: False,
    ) -> None:
        end.setblocking(False)
        self._starved = starved
        self._broken = False
        self._end = end
        self._id = sandbox_id
        self._stderr = stderr
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[int]] = {}
        self._dead = False
        self.ready: asyncio.Future[int] = self._loop.create_future()
        self._awaited[0] = self.ready
        self._loop.add_reader(end.fileno(), self._receive)

    def close(self) -> None:
        """Close the connection, which ends the supervisor and all processes inside."""
        self._lose()
        self._end.close()

    async def setup(self, settings: Mapping[str, object]) -> None:
        """Send the settings and wait until the sandbox is finished.

        Raises:
            SandboxDied: The supervisor ended before it was.
        """
        await self._send_with({"op": "setup"}, settings)
        await self.ready

    async def start(
        self, request: Mapping[str, object], streams: Sequence[int]
    ) -> tuple[int, asyncio.Future[int]]:
        """Start a command; returns its number and the future of its exit code."""
        number, ended = self._expect()
        try:
            await self._send_with({"op": "start", "id": number}, request, *streams)
        except BaseException:  # also cancellation: clean up, then raise
            del self._awaited[number]
            raise
        return number, ended

    async def kill(self, command: int) -> None:
        """Kill a command's process tree and wait until it is dead."""
        number, done = self._expect()
        await self._send({"op": "kill", "id": number, "command": command})
        await done

    async def kill_all(self) -> None:
        """Kill every command and wait until all are dead."""
        number, done = self._expect()
        await self._send({"op": "kill_all", "id": number})
        await done

    async def protect(self, paths: Sequence[str]) -> None:
        """Make these files read-only.

        Raises:
            SandboxError: Not all of them are; it says which call failed on what.
        """
        number, done = self._expect()
        await self._send_with({"op": "protect", "id": number}, {"paths": list(paths)})
        await done

    def died(self) -> SandboxDied:
        """Return the error for a supervisor that has exited."""
        if self._broken:
            return SandboxBroken(
                f"the code inside broke the sandbox {self._id!r}: it used up the memory "
                "(resources.memory_mb), and the kernel ended all processes"
            )
        why = self.last_words() or "its supervisor ended, for example because the machine ran out of memory"
        return SandboxDied(f"the sandbox {self._id!r} is gone: {why}; nothing can be executed in it any more")

    def last_words(self) -> str:
        """Return the last line that the supervisor printed, or bubblewrap; empty where there is none."""
        try:
            said = self._stderr.read_text(errors="replace").strip().splitlines()
        except OSError:  # the sandbox was closed
            return ""
        return said[-1][-_MESSAGE:] if said else ""

    def _expect(self) -> tuple[int, asyncio.Future[int]]:
        number = next(self._numbers)
        future: asyncio.Future[int] = self._loop.create_future()
        self._awaited[number] = future
        return number, future

    async def _send_with(
        self, message: Mapping[str, object], content: Mapping[str, object], *fds: int
    ) -> None:
        """Send a message with its content in a sealed file."""
        fd = sealed(json.dumps(content).encode())
        try:
            await self._send(message, fd, *fds)
        finally:
            os.close(fd)

    async def _send(self, message: Mapping[str, object], *fds: int) -> None:
        data = json.dumps(message).encode()
        while not self._dead:
            try:
                socket.send_fds(self._end, [data], fds)
                return
            except BlockingIOError:
                await anyio.wait_writable(self._end)
            except OSError:
                self._lose()
        raise self.died()

    def _receive(self) -> None:
        try:
            data = self._end.recv(_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        message = json.loads(data)
        future = self._awaited.pop(message.get("id", 0), None)
        if future is None or future.done():
            return
        if (error := message.get("error")) is None:
            future.set_result(message.get("code", 0))
        else:
            future.set_exception(
                SandboxError(f"files of the sandbox {self._id!r} could not be made read-only: {error}")
            )

    def _lose(self) -> None:
        """Fail all waiting calls: the other end is closed."""
        if self._dead:
            return
        self._dead, self._broken = True, self._starved()
        self._loop.remove_reader(self._end.fileno())
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(self.died())
                future.exception()  # marks it as seen: perhaps no task waits for the command
        self._awaited.clear()
