"""A one-file plugin that makes rollouts of `tests/resumed_rollouts.py` tell their node, with exact tokens.

agent `noting`      makes one LLM call, and writes the process id of its node into a file
engine `letters`    says the rollout's id; its tokens are the bytes
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from swe_core import AgentContext, AgentSpec, Component, Engine, hookimpl
from swe_core.api.component import Config
from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession, Sampled, Usage

_SCRIPT = """
import os, time, urllib.request
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
body = b'{"messages": [{"role": "user", "content": "hello"}]}'
url = os.environ["BASE"] + "/chat/completions"
print(urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read())
open("node.txt", "w").write(os.environ["NODE"])
time.sleep(float(os.environ["STAY"]))
"""


class NotingConfig(Config):
    """`stay`: seconds until an agent ends."""

    stay: float = 0.0


class Noting(AgentSpec):
    name = "noting"

    def __init__(self, config: NotingConfig) -> None:
        self._stay = config.stay

    def command(self, ctx: AgentContext) -> Sequence[str]:
        mark = os.environ.get("XDG_CACHE_HOME", "")  # of the cluster, by which tests know its agents
        return ["python3", "-S", "-c", _SCRIPT, mark]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        node = str(os.getpid())
        return {"BASE": ctx.base_url, "KEY": ctx.api_key, "NODE": node, "STAY": str(self._stay)}


class LettersConfig(Config):
    """`key_env`: a variable that the engine needs."""

    key_env: str | None = None


class Letters(Engine):
    model = "letters"

    def __init__(self, config: LettersConfig) -> None:
        if config.key_env is not None and not os.environ.get(config.key_env):
            raise ValueError(f"the variable {config.key_env} is unset")

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        word = session.rollout_id
        ids = np.frombuffer(word.encode(), np.uint8).astype(np.int32)
        logprobs, versions = np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32)
        sampled = Sampled(None, np.array([1, 2], np.int32), ids, logprobs, versions, "full", "start")
        usage = Usage(prompt_tokens=2, completion_tokens=len(ids))
        return Completion({"role": "assistant", "content": word}, usage=usage, sampled=sampled)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component("noting", Noting, NotingConfig)]


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    return [Component("letters", Letters, LettersConfig)]
