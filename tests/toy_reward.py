"""A one-file plugin whose reward even a tiny random model earns now and then, and can learn: an agent that
asks once and writes down the reply, and a grader that wants many letters e in it. The tests load it with -p.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import Field

from swe_core import (
    AgentContext,
    AgentSpec,
    Component,
    Config,
    Grade,
    Graded,
    Grader,
    SandboxProvider,
    SandboxSpec,
    Task,
    TaskSource,
    hookimpl,
)
from swe_core.builtin.demo.source import DemoSource

HELD_OUT = ("demo__csvtidy-1", "demo__runall-1")

SCRIPT = """
import json, os, urllib.request
body = {"messages": [{"role": "user", "content": "Say something."}]}
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["BASE"] + "/chat/completions", json.dumps(body).encode(), headers)
reply = json.load(urllib.request.urlopen(request, timeout=300))
json.dump(reply["choices"][0]["message"]["content"], open("reply.json", "w"))
"""
"""It writes JSON in ASCII, one line, whatever the model says."""


class Toy(AgentSpec):
    """One chat completion, and nothing else."""

    name = "toy"

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-c", SCRIPT]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key}


class LettersConfig(Config):
    """`[grader.letters]`."""

    enough: int = Field(ge=1, description="letters e in a reply that is rewarded")


class Letters:
    """Counts letters in the patch; no sandbox is needed for that."""

    def __init__(self, config: LettersConfig) -> None:
        self._enough = config.enough

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        (said,) = re.findall(rb'^\+(".*"|null)$', patch, re.MULTILINE)
        letters = (json.loads(said) or "").count("e")
        return Graded(grade=Grade(resolved=letters >= self._enough, reason=f"{letters} letters"))


class HeldOut:
    """Two tasks of the demo, to evaluate on."""

    recording = None

    def tasks(self) -> Iterator[Task]:
        return (task for task in DemoSource().tasks() if task.instance_id in HELD_OUT)


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    return [Component("held-out", lambda _config: HeldOut())]


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component("toy", lambda _config: Toy())]


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    return [Component("letters", Letters, LettersConfig)]
