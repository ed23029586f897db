"""What the client of an interactive episode does in its sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from swe_core.api.sandbox import Sandbox
from swe_core.errors import SandboxTimeout, sentence

MAX_TEXT = 1024 * 1024
"""Most bytes of a stream or a file that a client gets at once."""
TIMED_OUT = 124
"""Exit code of a command that ran out of time, as of the program `timeout`."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of one command, as text; `truncated` says whether output is missing."""

    output: str
    error_output: str
    exit_code: int
    truncated: bool = False


async def exec_command(
    sandbox: Sandbox, command: str, timeout: float, env: Mapping[str, str]
) -> CommandResult:
    """Run a shell command in the repository. One that runs out of time is killed with its children.

    Args:
        timeout: Seconds.
        env: The task's variables.

    Raises:
        SandboxError: The sandbox failed.
    """
    try:
        done = await sandbox.exec(["sh", "-c", command], env=env, timeout=timeout, max_output=MAX_TEXT)
    except SandboxTimeout as error:
        return CommandResult("", f"{sentence(error)}\n", TIMED_OUT)
    return CommandResult(
        done.text, done.stderr.decode(errors="replace"), done.exit_code, truncated=done.truncated
    )


async def read_file(sandbox: Sandbox, path: str, timeout: float) -> str:
    """Return a file as text; a relative path is relative to the repository.

    Args:
        timeout: Seconds; a pipe or a device may never end.

    Raises:
        SandboxError: It cannot be read in time, or is larger than `MAX_TEXT`.
    """
    with _in_time(path, timeout):
        data = await sandbox.read(posixpath.join(sandbox.spec.workdir, path), max_bytes=MAX_TEXT)
    return data.decode(errors="replace")


async def write_file(sandbox: Sandbox, path: str, content: str, timeout: float) -> None:
    """Create or replace a file; a relative path is relative to the repository.

    Args:
        timeout: Seconds.

    Raises:
        SandboxError: It cannot be written in time.
    """
    with _in_time(path, timeout):
        await sandbox.write(posixpath.join(sandbox.spec.workdir, path), content.encode())


@contextmanager
def _in_time(path: str, seconds: float) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise SandboxTimeout(f"{path!r} in the sandbox was not read or written in {seconds:g} s") from None
