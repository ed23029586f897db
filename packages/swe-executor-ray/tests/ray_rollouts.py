"""A one-file plugin of small rollouts with all phases of real ones, and with exact tokens.

tasks `small`       `TASKS` tasks on the repository of the variable SWE_TEST_REPO
agent `once`        makes one LLM call, and writes the process id of its node into a file
engine `letters`    says the rollout's id; its tokens are the bytes
grader `digest`     opens a fresh sandbox as any grader does; resolved or not by the task's name
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from swe_core import AgentContext, AgentSpec, Component, Engine, hookimpl
from swe_core.api.component import Config
from swe_core.api.engine import ChatRequest, Completion, Emit, EngineSession, Sampled, Usage
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task, TaskSource

_SCRIPT = """
import os, time, urllib.request
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
body = b'{"messages": [{"role": "user", "content": "hello"}]}'
url = os.environ["BASE"] + "/chat/completions"
print(urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read())
open("node.txt", "w").write(os.environ["NODE"])
time.sleep(float(os.environ["STAY"]))
"""


class OnceConfig(Config):
    """`stay`: seconds until an agent ends."""

    stay: float = 0.0


class Once(AgentSpec):
    name = "once"

    def __init__(self, config: OnceConfig) -> None:
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


class Digest:
    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        async with provider.open(spec) as sandbox:
            done = await sandbox.exec(["git", "status"], timeout=60)
        return Graded(grade=Grade(resolved=zlib.crc32(task.instance_id.encode()) % 2 == 0), log=done.stdout)


class SmallConfig(Config):
    """`count`: number of tasks; `repository`: theirs."""

    repository: Path
    count: int = 1


class Small:
    recording: Path | None = None

    def __init__(self, config: SmallConfig) -> None:
        self._config = config

    def tasks(self) -> Iterator[Task]:
        for number in range(self._config.count):
            yield Task(
                instance_id=f"small-{number}",
                repo="none",
                base_commit="0" * 40,
                problem_statement="Say hello.",
                patch="",
                test_patch="",
                fail_to_pass=("test",),
                pass_to_pass=(),
                test_command="true",
                repository=self._config.repository,
            )


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component("once", Once, OnceConfig)]


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    return [Component("letters", Letters, LettersConfig)]


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    return [Component("digest", lambda config: Digest())]


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    return [Component("small", Small, SmallConfig)]
