"""Requests to a control port inside a sandbox, made by a small program inside: see `PullTransport`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import resources

from swe_core.api.sandbox import ASSETS_DIR, Process, Sandbox
from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.pull_relay import TransportError
from swe_core.sandboxing.relay.transport import short
from swe_core.system.detached import closed
from swe_core.system.printable import one_line

_INSIDE = resources.files("swe_openenv.play") / "inside"
_PYTHON, _NODE = ((_INSIDE / f"request.{kind}").read_text() for kind in ("py", "mjs"))
_SCRIPT = f"""
py=$1 js=$2
shift 2
for python in python3 python {ASSETS_DIR}/*/bin/python3; do
  if command -v "$python" >/dev/null; then exec "$python" -I -S -c "$py" "$@"; fi
done
for node in node nodejs {ASSETS_DIR}/*/bin/node; do
  if command -v "$node" >/dev/null; then exec "$node" --input-type=module -e "$js" "$@"; fi
done
exit 69
"""


class PullTransport:
    """A `Transport` for a sandbox that can only run commands: each request is a command.

    Args:
        port: The control port on the sandbox's loopback.
    """

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox = sandbox
        self._port = port

    @asynccontextmanager
    async def pull(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        process = await self._start("GET", path, headers, b"")
        try:
            yield _body(process)
        finally:
            await closed(process.kill, "the end of a pull", SandboxError)

    async def push(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        process = await self._start("POST", path, headers, body)
        try:
            return await short(_body(process))
        finally:
            await closed(process.kill, "the end of a push", SandboxError)

    async def _start(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Process:
        # Headers prove who asks, so they are no arguments, which every process inside can read.
        head = json.dumps(dict(headers)).encode() + b"\n"
        argv = ["sh", "-c", _SCRIPT, "sh", _PYTHON, _NODE, str(self._port), method, path]
        return await self._sandbox.start(argv, cwd="/", stdin=head + body)


async def _body(process: Process) -> AsyncIterator[bytes]:
    said = b""
    async for stream, chunk in process.output():
        if stream == "stdout":
            yield chunk
        else:
            said = (said + chunk)[-1000:]
    code = await process.wait()
    if code:
        why = one_line(said.decode(errors="replace")) or f"exit code {code}"
        raise TransportError(f"a request to the relay inside failed: {why}")
