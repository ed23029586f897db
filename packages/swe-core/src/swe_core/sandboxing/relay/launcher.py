"""Run programs inside a sandbox with its python3 or node, or with those of the agent's assets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources

import anyio
from anyio.abc import TaskStatus

from swe_core.api.sandbox import ASSETS_DIR, Process, Sandbox
from swe_core.errors import SandboxDied, SandboxError
from swe_core.sandboxing.background import helper_task_group
from swe_core.sandboxing.relay.frames import ProtocolError

_READY_TIMEOUT = 60.0
"""Seconds until the program inside listens; many sandboxes may start on few cores."""
_KILL_TIMEOUT = 10.0
_TAIL = 2000
_READY = re.compile(rb"ready((?: [0-9]{1,5})+)")
_LAST_PORT = 65535

_NO_INTERPRETER = 69  # EX_UNAVAILABLE
# The programs travel as arguments: no file to leave behind or to trust.
_SCRIPT = f"""
py=$1 js=$2
shift 2
for python in python3 python {ASSETS_DIR}/*/bin/python3; do
  if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null; then
    exec "$python" -I -S -c "$py" "$@"
  fi
done
for node in node nodejs {ASSETS_DIR}/*/bin/node; do
  if "$node" --version >/dev/null 2>&1; then
    exec "$node" --input-type=module -e "$js" "$@"
  fi
done
exit {_NO_INTERPRETER}
"""


class NotStarted(SandboxError):
    """The program exited or printed nothing before it listened."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program inside that listens.

    Args:
        ports: Its ports on 127.0.0.1 inside.
        ended: Set when the program or its sandbox has ended.
    """

    ports: tuple[int, ...]
    ended: anyio.Event


@cache
def _sources(name: str) -> tuple[str, str]:
    package = resources.files("swe_core.sandboxing.relay.inside")
    return (package / f"{name}.py").read_text(), (package / f"{name}.mjs").read_text()


def interpreted(name: str, *arguments: str) -> list[str]:
    """Return the command that runs the program `name` with an interpreter that it finds inside."""
    return ["sh", "-c", _SCRIPT, "sh", *_sources(name), *arguments]


@asynccontextmanager
async def running(
    sandbox: Sandbox, name: str, *arguments: str, stdin: bytes | None = None, ports: int = 1
) -> AsyncIterator[Program]:
    """Start the program `name` inside and wait until it listens; leaving the context kills it.

    Args:
        stdin: Input with secrets: every process can read arguments.
        ports: Number of ports on which it listens.

    Raises:
        NotStarted: There is neither Python >= 3.6 nor Node inside, or the program does not listen.
        SandboxError: The program cannot be run.
        ProtocolError: The program does not print what ours prints.
        SandboxDied: The sandbox has exited.
    """
    process = await sandbox.start(interpreted(name, *arguments), cwd="/", stdin=stdin)
    try:
        async with helper_task_group() as tasks:
            ended = anyio.Event()
            try:
                with anyio.fail_after(_READY_TIMEOUT):
                    found: tuple[int, ...] = await tasks.start(_watch, sandbox, process, ended, ports)
            except TimeoutError:
                raise NotStarted(
                    f"the relay did not start within {_READY_TIMEOUT:g} s in the sandbox {sandbox.id!r}"
                ) from None
            yield Program(found, ended)
    finally:
        with anyio.move_on_after(_KILL_TIMEOUT, shield=True), suppress(SandboxDied):
            await process.kill()


async def _watch(
    sandbox: Sandbox,
    process: Process,
    ended: anyio.Event,
    count: int,
    *,
    task_status: TaskStatus[tuple[int, ...]],
) -> None:
    """Report the ports once the program listens, then drain its streams."""
    printed = {"stdout": b"", "stderr": b""}
    ready = False
    try:
        async for stream, chunk in process.output():
            if ready:
                continue
            printed[stream] = (printed[stream] + chunk)[-_TAIL:]
            line, newline, _ = printed["stdout"].partition(b"\n")
            if newline and line.startswith(b"ready "):
                ports = _ports(sandbox, line, count)
                ready = True
                task_status.started(ports)
        exit_code = await process.wait()
    except SandboxError:
        if not ready:
            raise
        ended.set()
        return  # the next use of the sandbox raises the error
    if ready:
        ended.set()
        return
    if exit_code == _NO_INTERPRETER:
        raise NotStarted(
            f"the sandbox {sandbox.id!r} has neither python3 (>= 3.6) nor node, one of which must relay its "
            "LLM calls; use an image with either, or an agent whose assets bring one"
        )
    why = printed["stderr"].decode(errors="replace").strip() or f"exit code {exit_code}"
    raise NotStarted(f"the relay did not start in the sandbox {sandbox.id!r}: {why}")


def _ports(sandbox: Sandbox, line: bytes, count: int) -> tuple[int, ...]:
    """Parse the ports of the line that a listening program prints; code inside may have replaced it."""
    match = _READY.fullmatch(line)
    ports = tuple(map(int, match[1].split())) if match else ()
    if len(ports) != count or not all(0 < port <= _LAST_PORT for port in ports):
        raise ProtocolError(
            f"what runs as the relay in the sandbox {sandbox.id!r} named {line[:100]!r} as its ports; "
            "is its python3 or node a program of that name?"
        )
    return ports
