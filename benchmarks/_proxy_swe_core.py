"""Our interception server in a process of its own: python _proxy_swe_core.py ENGINE URL TOKENIZER FOLDER.

It reads how many rollouts to register, one number a line, unregisters the earlier ones, and answers with the
base URL and the key of each. Turns are recorded in FOLDER, as in a run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from _workload import MODEL

from swe_core.api.engine import Engine, EngineSession
from swe_core.interception.server import InterceptionServer
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.system.event_loop import run, settled
from swe_core.system.redaction import Redactor


def create(name: str, url: str, tokenizer: str) -> Engine:
    """The engine `name`, for the mock at `url`."""
    key = "SWE_CORE_BENCHMARK_NO_KEY"
    if name == "openai":
        from swe_core.builtin.openai import OpenAIConfig
        from swe_core.builtin.openai.engine import OpenAIEngine

        return OpenAIEngine(OpenAIConfig(url=f"{url}/v1", model=MODEL, api_key_env=key))
    from swe_core.builtin.vllm import VLLMConfig
    from swe_core.builtin.vllm.engine import VLLMEngine

    return VLLMEngine(
        VLLMConfig(url=url, model=MODEL, tokenizer=tokenizer, renderer="qwen3", api_key_env=key)
    )


async def main(name: str, url: str, tokenizer: str, folder: str) -> None:
    redactor, number = Redactor(), 0
    async with (
        create(name, url, tokenizer) as engine,
        InterceptionServer() as server,
        AsyncExitStack() as open_,
    ):
        await engine.check()
        with settled():  # as a run does
            while line := await asyncio.to_thread(sys.stdin.readline):
                await open_.aclose()
                opened = []
                for _ in range(int(line)):
                    number += 1
                    record = RolloutFolder(Path(folder, str(number)), redactor)
                    open_.callback(record.close)
                    who = EngineSession(str(number), "task", 0, "agent")
                    gate = await open_.enter_async_context(server.session(engine, who, record.add_turn))
                    redactor.add(gate.token)
                    open_.callback(redactor.discard, gate.token)
                    opened.append([server.url + gate.path, gate.token])
                print(json.dumps(opened), flush=True)


if __name__ == "__main__":
    run(main, *sys.argv[1:])
