"""A runner of two rollouts whose collaborators a test can inspect and disturb."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import anyio
import anyio.lowlevel
from click.testing import CliRunner

from swe_core.api.agent import AgentContext, AgentSpec
from swe_core.api.grader import Grade, Graded
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin.demo.source import DemoSource
from swe_core.builtin.executors import LocalExecutor
from swe_core.builtin.local.provider import LocalProvider
from swe_core.cli.report import report
from swe_core.errors import SandboxDied
from swe_core.interception.server import InterceptionServer
from swe_core.report.token_audit import audit
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.rollout.runner import Runner
from swe_core.rollout.site import LocalSite
from swe_core.run.plan import sandbox_spec
from swe_core.run.settings import Settings
from swe_testing.records import make_request, make_run

from .shaky_server import Shaky

PATIENCE = 120
"""Seconds until a test that hangs fails."""

SCRIPT = """
import json, os, sys, time, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
url = os.environ["BASE"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
time.sleep(float(sys.argv[1]))
"""


class Talker(AgentSpec):
    """Runs `script`, which makes one LLM call; at `staying` tasks it then never exits."""

    name = "talker"

    def __init__(self) -> None:
        self.staying: set[str] = set()
        self.script = SCRIPT

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return [
            "python3",
            "-I",
            "-S",
            "-c",
            self.script,
            "1e6" if ctx.task.instance_id in self.staying else "0",
        ]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key}


class CountedProvider:
    """Local sandboxes.

    Attributes:
        alive: Labels of the open ones.
        closes: Whether they close without an error.
        flavors: Flavors of the next ones.
        on_open: Called with each new one; an error it raises prevents the opening.
    """

    def __init__(self) -> None:
        self.alive: list[str] = []
        self.closes = True
        self.flavors: list[str] = []
        self.on_open: Callable[[Sandbox], None] = lambda sandbox: None
        self._local = LocalProvider(unisolated=True)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        try:
            async with self._local.open(spec) as sandbox:
                self.on_open(sandbox)
                sandbox.flavor = self.flavors.pop(0) if self.flavors else None
                self.alive.append(spec.labels["rollout"])
                yield sandbox
        finally:  # closed by now
            if spec.labels["rollout"] in self.alive:
                self.alive.remove(spec.labels["rollout"])
            if not self.closes:
                raise SandboxDied("the sandbox cannot be closed")

    def notes(self) -> Sequence[str]:
        return ()

    async def list(self) -> Sequence[SandboxEntry]:
        return ()

    async def reap(self) -> int:
        return 0


class Approving:
    """A grader; `meanwhile` is what happens while it grades."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        async with provider.open(spec):
            await self.meanwhile()
        return Graded(grade=Grade(resolved=True))


@dataclass
class Witness:
    """An observer; its callbacks may do something."""

    on_turn: Callable[[str], None] = lambda rollout_id: None
    on_finished: Callable[[Rollout], None] = lambda rollout: None
    seen: list[tuple[str, str]] = field(default_factory=list)

    def started(self, request: RolloutRequest) -> None:
        self.seen.append((request.id, "started"))

    def phase(self, rollout_id: str, phase: Phase) -> None:
        self.seen.append((rollout_id, phase))

    def turn(self, rollout_id: str, turn: Turn) -> None:
        self.seen.append((rollout_id, "turn"))
        self.on_turn(rollout_id)

    def finished(self, rollout: Rollout) -> None:
        self.seen.append((rollout.id, "finished"))
        self.on_finished(rollout)


@dataclass
class Bench:
    """A runner of two rollouts, and everything it runs them with."""

    runner: Runner
    run: RunDirectory
    agent: Talker
    engine: Shaky
    provider: CountedProvider
    grader: Approving
    witness: Witness

    @property
    def first(self) -> RolloutRequest:
        return self.runner.requests[0]

    @property
    def second(self) -> RolloutRequest:
        return self.runner.requests[1]

    def accounted(self) -> None:
        """All that is on disk balances, for the report too."""
        assert audit(self.run, self.run.rollouts()).problems == ()
        shown = CliRunner().invoke(report, [str(self.run.path)], env={"COLUMNS": "160"})
        assert shown.exit_code == 0, shown.output
        assert "balanced, 100.0 % accounted for" in shown.output


def local_executor(parts: RunContext, run: RunDirectory) -> LocalExecutor:
    """An open executor of this process."""
    executor = LocalExecutor()
    executor._site = LocalSite(parts, run.path / FOLDERS)
    executor._engine = parts.gate[1] if parts.gate is not None else None
    return executor


@asynccontextmanager
async def open_bench(path: Path) -> AsyncIterator[Bench]:
    """A bench whose run directory is `path`. In the end nothing of it may run."""
    agent, engine, provider, grader, witness = (
        Talker(),
        Shaky(Random(1), {"ok": 1}),
        CountedProvider(),
        Approving(),
        Witness(),
    )
    run = make_run(path)
    requests = []
    for task in list(DemoSource().tasks())[:2]:
        spec = sandbox_spec(task, Settings()).model_copy(update={"labels": {"rollout": task.instance_id}})
        requests.append(make_request(task, spec=spec))
    async with engine, InterceptionServer() as server:
        parts = RunContext(agent, provider, grader, (server, engine), None, run.redactor)
        executor = local_executor(parts, run)
        runner = Runner(requests, executor, engine, run, [], concurrency=2)
        runner.observe(witness)
        with anyio.fail_after(PATIENCE):
            yield Bench(runner, run, agent, engine, provider, grader, witness)
    assert provider.alive == []
    assert cast(LocalSite, executor._site)._running == {}
