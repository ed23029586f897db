"""The process of a node on this host: python -m swe_core.run.node_process SOCKET.

It answers on a Unix socket, prints a line once it does, and ends with its standard input, so with the driver.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import BinaryIO

import anyio
from aiohttp import web

from swe_core.run.node import RolloutNode
from swe_core.system.event_loop import run
from swe_core.system.redaction import Redactor, redaction_scope

_MAX_MESSAGE = 1 << 30
"""Bytes of a message; a request holds a task with all its patches."""


async def serve(path: str, redactor: Redactor) -> None:
    """Serve a node on the Unix socket at `path` until its standard input ends."""
    node = RolloutNode(redactor)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await node.answer(request.match_info["method"], await request.read()))

    app = web.Application(client_max_size=_MAX_MESSAGE)
    app.router.add_post("/{method}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.UnixSite(runner, path).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the driver reads one line only
        loop = asyncio.get_running_loop()
        threading.Thread(target=_at_the_end, args=(sys.stdin.buffer, loop, node), daemon=True).start()
        await node.run()
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


def _at_the_end(file: BinaryIO, loop: asyncio.AbstractEventLoop, node: RolloutNode) -> None:
    """Stop the node once the file ends: its writer, the driver, has exited."""
    file.read()
    loop.call_soon_threadsafe(node.stop)


if __name__ == "__main__":
    with redaction_scope() as scope:
        run(serve, sys.argv[1], scope)
