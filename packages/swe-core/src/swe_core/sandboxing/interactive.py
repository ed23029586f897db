"""A command inside a sandbox with an open standard input, for any provider.

The command reads from a named pipe inside. Each message is written to it by a command of its own, which costs
one `exec`: for conversations of a few messages, not for streams.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from swe_core.api.sandbox import Process, Sandbox, Stream
from swe_core.errors import SandboxBroken, SandboxError
from swe_core.system.detached import closed

# The shell opens the pipe for reading and writing, so that neither side waits for the other, nor sees an end.
_START = 'pipe=$1; shift; exec "$@" <>"$pipe"'
_MAKE = 'mkdir -p "${1%/*}" && mkfifo -m 600 "$1"'
_SENDING = 60.0
"""Seconds until a command must have read a message that its pipe has no room for."""


class InteractiveProcess:
    """A running command whose standard input stays open.

    Args:
        process: The command.
        pipe: Path of its standard input inside the sandbox.
    """

    def __init__(self, sandbox: Sandbox, process: Process, pipe: str) -> None:
        self._sandbox = sandbox
        self._process = process
        self._pipe = pipe
        self._sending = anyio.Lock()

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """See `Process.output`."""
        return self._process.output()

    async def wait(self) -> int:
        """See `Process.wait`."""
        return await self._process.wait()

    async def send(self, data: bytes) -> None:
        """Write `data` to the command's standard input, after all earlier data.

        Raises:
            SandboxTimeout: The command does not read it.
            SandboxBroken: It cannot be written: code inside removed the pipe or the shell.
            SandboxError: The sandbox failed.
        """
        async with self._sending:
            await _run(self._sandbox, 'cat >"$1"', self._pipe, data)


@asynccontextmanager
async def interactive(
    sandbox: Sandbox, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], directory: str
) -> AsyncIterator[InteractiveProcess]:
    """Start a command with an open standard input; leaving the context kills it and its children.

    Args:
        directory: A writable directory inside, for the pipe.

    Raises:
        SandboxError: The command cannot be started, or does not end.
    """
    pipe = f"{directory}/.stdin-{secrets.token_hex(4)}"
    await _run(sandbox, _MAKE, pipe)
    process = await sandbox.start(["sh", "-c", _START, "sh", pipe, *argv], cwd=cwd, env=env)
    try:
        yield InteractiveProcess(sandbox, process, pipe)
    finally:
        await closed(process.kill, "the end of an interactive command", SandboxError)


async def _run(sandbox: Sandbox, script: str, pipe: str, data: bytes | None = None) -> None:
    done = await sandbox.exec(["sh", "-c", script, "sh", pipe], cwd="/", stdin=data, timeout=_SENDING)
    if done.exit_code != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
        kind = SandboxError if data is None else SandboxBroken
        raise kind(f"the standard input of a command in the sandbox cannot be written: {said}")
