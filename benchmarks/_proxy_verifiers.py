"""verifiers' interception server in a process of its own: _proxy_verifiers.py relay|train URL TOKENIZER.

It runs in verifiers' own environment. As `_proxy_swe_core.py`, it reads how many sessions to open, one number
a line, and answers with their base URLs and keys.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from renderers import Qwen3RendererConfig
from verifiers.v1.clients import EvalClientConfig, ModelContext, TrainClientConfig
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask


def session(context: ModelContext) -> RolloutSession:
    """A rollout's session, as `verifiers.v1.rollout.Rollout` makes it."""
    task = TraceTask(type="Task", data=TaskData())
    return RolloutSession(ctx=context, trace=Trace(task=task, agent=AgentInfo(config=AgentConfig())))


async def main(mode: str, url: str, tokenizer: str) -> None:
    settings = {"base_url": f"{url}/v1", "api_key_var": "NO_KEY"}
    if mode == "train":
        client = TrainClientConfig(**settings, renderer=Qwen3RendererConfig(), renderer_model_name=tokenizer)
    else:
        client = EvalClientConfig(**settings)
    context = ModelContext(model="policy", client=client)
    async with InterceptionServer() as server, AsyncExitStack() as open_:
        while line := await asyncio.to_thread(sys.stdin.readline):
            await open_.aclose()
            opened = []
            for _ in range(int(line)):
                slot = await open_.enter_async_context(server.acquire(session(context)))
                opened.append([f"{slot[0]}/v1", slot[1]])
            print(json.dumps(opened), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
