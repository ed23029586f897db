"""Our capture server in a process of its own: python _proxy_capture.py URL TOKENIZER FOLDER.

As `_proxy_openenv.py`, it reads how many sessions to open, one number a line, deletes those before, and
answers with their base URLs and keys. It does so over HTTP, since that is how sessions are made.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
from _workload import MODEL

from swe_core.system.event_loop import run, settled
from swe_openenv.capture.server import CaptureOptions, capture


async def main(url: str, tokenizer: str, folder: str) -> None:
    settings = (f"engine.vllm.tokenizer={tokenizer}", "engine.vllm.renderer=qwen3")
    options = CaptureOptions(llm_url=url, model=MODEL, port=0, out=Path(folder), sets=settings)
    async with capture(options) as base, aiohttp.ClientSession(base) as client:
        opened: list[str] = []
        with settled():  # as the command does
            while line := await asyncio.to_thread(sys.stdin.readline):
                for key in opened:
                    async with client.delete(f"/sessions/{key}") as answer:
                        await answer.read()
                opened = []
                for _ in range(int(line)):
                    async with client.post("/sessions", json={"purpose": "train"}) as answer:
                        opened.append((await answer.json())["session_id"])
                print(json.dumps([[f"{base}/v1", key] for key in opened]), flush=True)


if __name__ == "__main__":
    run(main, *sys.argv[1:])
