"""`reach_by_socket`: the relay for providers that share a host directory with their sandboxes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import resources
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from swe_core.errors import PolicyRefused, SandboxDied, SandboxError
from swe_core.relay.unix import background, unix_listener
from swe_core.sandbox import ASSETS_DIR, Process, Sandbox

READY_TIMEOUT = 60.0
"""Seconds that the program inside may take to listen; many sandboxes may start on few cores."""
KILL_TIMEOUT = 10.0
_TAIL = 2000

_NO_INTERPRETER = 69  # EX_UNAVAILABLE
# The programs travel as arguments: no file to leave behind, to trust, or to write in a sandbox of one's own.
_SCRIPT = f"""
for python in python3 python; do
  if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null; then
    exec "$python" -I -S -c "$1" "$3"
  fi
done
for node in node nodejs {ASSETS_DIR}/*/bin/node; do
  if "$node" --version >/dev/null 2>&1; then
    exec "$node" --input-type=module -e "$2" "$3"
  fi
done
exit {_NO_INTERPRETER}
"""


def require_network(sandbox: Sandbox) -> None:
    """Refuse to make anything reachable from a sandbox that was opened without a network.

    Raises:
        PolicyRefused: Its policy is `none`.
    """
    if sandbox.spec.network == "none":
        raise PolicyRefused(
            f"the sandbox {sandbox.id!r} was opened with network 'none', so nothing may be reached from it; "
            "open it with network 'llm'"
        )


@asynccontextmanager
async def reach_by_socket(
    sandbox: Sandbox, endpoint: str, host_dir: Path, inside_dir: str
) -> AsyncIterator[str]:
    """Make `endpoint` reachable from inside `sandbox`, through a unix socket in a shared directory.

    Args:
        sandbox: Where the forwarding program is started.
        endpoint: `http://HOST:PORT` of a server on this host.
        host_dir: A directory of this host that the sandbox sees at `inside_dir`. The sandbox's user must
            be able to enter it; the socket itself is open to every user.
        inside_dir: The same directory, as the sandbox sees it; it may be mounted read-only.

    Yields:
        `http://127.0.0.1:PORT`, the URL at which code inside finds the endpoint.

    Raises:
        PolicyRefused: The sandbox's network policy is `none`.
        SandboxError: The sandbox has neither Python >= 3.6 nor Node, the program did not start, or the
            directory's path is too long for a socket.
    """
    require_network(sandbox)
    name = f"{secrets.token_hex(4)}.sock"
    package = resources.files("swe_core.relay")
    programs = [(package / file).read_text() for file in ("forward.py", "forward.mjs")]
    async with unix_listener(host_dir / name, endpoint):
        argv = ["sh", "-c", _SCRIPT, "sh", *programs, f"{inside_dir}/{name}"]
        process = await sandbox.start(argv, cwd="/")
        try:
            async with background() as tasks:
                try:
                    with anyio.fail_after(READY_TIMEOUT):
                        port: int = await tasks.start(_watch, sandbox, process)
                except TimeoutError:
                    raise SandboxError(
                        f"the relay did not start within {READY_TIMEOUT:g} s in the sandbox {sandbox.id!r}"
                    ) from None
                yield f"http://127.0.0.1:{port}"
        finally:
            with anyio.move_on_after(KILL_TIMEOUT, shield=True), suppress(SandboxDied):
                await process.kill()


async def _watch(sandbox: Sandbox, process: Process, *, task_status: TaskStatus[int]) -> None:
    """Report the port once the program listens, then keep its streams empty."""
    said = {"stdout": b"", "stderr": b""}
    ready = False
    try:
        async for stream, chunk in process.output():
            if ready:
                continue
            said[stream] = (said[stream] + chunk)[-_TAIL:]
            line, newline, _ = said["stdout"].partition(b"\n")
            if newline and line.startswith(b"ready "):
                ready = True
                task_status.started(int(line[len(b"ready ") :]))
        exit_code = await process.wait()
    except SandboxDied:
        if not ready:
            raise
        return  # whoever uses the sandbox next finds out by themselves
    if ready:
        return
    if exit_code == _NO_INTERPRETER:
        raise SandboxError(
            f"the sandbox {sandbox.id!r} has neither python3 (>= 3.6) nor node, one of which must relay its "
            "LLM calls; use an image with either, or an agent whose assets bring a node"
        )
    why = said["stderr"].decode(errors="replace").strip() or f"exit code {exit_code}"
    raise SandboxError(f"the relay did not start in the sandbox {sandbox.id!r}: {why}")
