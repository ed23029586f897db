"""OpenEnv's capture server in a process of its own: python _proxy_openenv.py URL.

It runs in OpenEnv's own environment. As `_proxy_swe_core.py`, it reads how many sessions to open, one number
a line, and answers with their base URLs and keys.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

import uvicorn
from openenv.core.harness.capture.server import create_app


async def main(url: str) -> None:
    app = create_app(llm_url=url, model="policy", capture_level="tokens")
    registry, opened = app.state.registry, []
    # As its CaptureServer runs it, but on the loopback interface only.
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        base = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        while line := await asyncio.to_thread(sys.stdin.readline):
            for session in opened:
                registry.delete(session)
            opened = [registry.create().session_id for _ in range(int(line))]
            print(json.dumps([[base, session] for session in opened]), flush=True)
        serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
