"""A one-file plugin of small rollouts with all phases of real ones. Loaded with -p by the tests.

tasks `small`      ten tasks on the repository `repo` in the directory SWE_TEST_DIR
agent `once`       makes one LLM call, and changes a file
grader `digest`    opens a fresh sandbox as any grader does; resolved or not by the task's name
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from swe_core import AgentContext, AgentSpec, Component, hookimpl
from swe_core.api.grader import Grade, Graded, Grader
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task, TaskSource

TASKS = 10
FAILING = "FAILING"
"""A variable with the tasks at which the agent fails."""
STAYING = "STAYING"
"""A variable with the tasks at which it never ends."""

_SCRIPT = """
import os, time, urllib.request
if os.environ["FAILS"]:
    raise SystemExit(1)  # after its call, a failure would be the policy's
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
body = b'{"messages": [{"role": "user", "content": "hello"}]}'
url = os.environ["BASE"] + "/chat/completions"
print(urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read())
open("changed.txt", "w").write("changed")
time.sleep(float(os.environ["STAY"]))
"""


class Once(AgentSpec):
    name = "once"

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-S", "-c", _SCRIPT]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        failing, staying = (ctx.task.instance_id in os.environ.get(n, "").split() for n in (FAILING, STAYING))
        stay = "1e6" if staying else "0"
        return {"BASE": ctx.base_url, "KEY": ctx.api_key, "FAILS": "x" * failing, "STAY": stay}


class Digest:
    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        async with provider.open(spec) as sandbox:
            done = await sandbox.exec(["git", "status"], timeout=60)
        return Graded(grade=Grade(resolved=zlib.crc32(task.instance_id.encode()) % 2 == 0), log=done.stdout)


class Small:
    recording: Path | None = None

    def tasks(self) -> Iterator[Task]:
        for number in range(TASKS):
            yield Task(
                instance_id=f"small-{number}",
                repo="none",
                base_commit="0" * 40,
                problem_statement="Say hello.",
                patch="",
                test_patch="",
                fail_to_pass=("test",),
                pass_to_pass=(),
                test_command=os.environ.get("TEST_COMMAND", "true"),
                repository=Path(os.environ["SWE_TEST_DIR"], "repo"),
            )


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component("once", lambda config: Once())]


@hookimpl
def swe_graders() -> Iterable[Component[Grader]]:
    return [Component("digest", lambda config: Digest())]


@hookimpl
def swe_tasks() -> Iterable[Component[TaskSource]]:
    return [Component("small", lambda config: Small())]
