"""A runner of two rollouts whose collaborators a test can inspect and disturb."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from click.testing import CliRunner

from swe_core.api.agent import AgentContext, AgentSpec
from swe_core.api.grader import Grade, Graded
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.sandbox import Process, Sandbox, SandboxEntry, SandboxProvider, SandboxSpec, Stream
from swe_core.api.task import Task
from swe_core.builtin.executors import LocalExecutor
from swe_core.cli.report import report
from swe_core.errors import SandboxDied
from swe_core.interception.server import InterceptionServer
from swe_core.report.token_audit import audit
from swe_core.rollout import loop
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.rollout.runner import Runner
from swe_core.rollout.site import LocalSite
from swe_core.sandboxing.repository.patch import Change
from swe_testing.records import make_request, make_run, make_task

from .shaky_server import Shaky

PATIENCE = 20
"""Seconds until a test that hangs fails."""


class Caller:
    """A client of a rollout's endpoint."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._url = env["BASE"] + "/chat/completions"
        self._exit = env["EXIT"]
        self._headers = {"Authorization": f"Bearer {env['KEY']}"}

    async def ask(self, *messages: tuple[str, Any], stream: bool = False) -> None:
        asked = [{"role": role, "content": content} for role, content in messages]
        await self._post(self._url, {"messages": asked, "stream": stream})

    async def submit(self) -> None:
        await self._post(self._exit, {})

    async def use(self, tool: str) -> None:
        await self._post(self._url.replace("/chat/completions", f"/tools/{tool}"), {})

    async def _post(self, url: str, body: object) -> None:
        async with aiohttp.ClientSession(headers=self._headers) as http, http.post(url, json=body) as reply:
            await reply.read()


async def one_call(caller: Caller) -> None:
    await caller.ask(("user", "hello"))


class Talker(AgentSpec):
    """Does `talk` in this process, one LLM call, and ends with `code`; at `staying` tasks it never ends."""

    name = "talker"

    def __init__(self) -> None:
        self.staying: set[str] = set()
        self.talk: Callable[[Caller], Awaitable[None]] = one_call
        self.code = 0

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["agent"]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"BASE": ctx.base_url, "KEY": ctx.api_key, "EXIT": ctx.exit_url}


class Inside(Process):
    """A command in a box: the agent, or one that says nothing."""

    def __init__(self, box: Box, env: Mapping[str, str] | None) -> None:
        self._box = box
        self._env = env
        self._lives = anyio.CancelScope()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        with self._lives:
            if self._env is not None:
                await self._box.agent.talk(Caller(self._env))
                if self._box.id in self._box.agent.staying:
                    await anyio.sleep_forever()
        for nothing in ():
            yield nothing

    async def wait(self) -> int:
        return 0 if self._env is None else self._box.agent.code

    async def kill(self) -> None:
        self._lives.cancel()


class Box(Sandbox):
    """A sandbox with nothing in it.

    Attributes:
        ran: The commands, but for the agent's.
    """

    def __init__(self, spec: SandboxSpec, agent: Talker) -> None:
        self.id = spec.labels["rollout"]
        self.spec = spec
        self.agent = agent
        self.ran: list[Sequence[str]] = []

    async def start(self, argv: Sequence[str], **more: Any) -> Process:
        if argv[0] == "agent":
            return Inside(self, more["env"])
        self.ran.append(argv)
        return Inside(self, None)

    async def kill_all(self) -> None:
        await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def reach(self, endpoint: str) -> AsyncIterator[str]:
        yield endpoint


class CountedProvider:
    """Boxes.

    Attributes:
        alive: Labels of the open ones.
        closes: Whether they close without an error.
        flavors: Flavors of the next ones.
        on_open: Called with each new one; an error it raises prevents the opening.
        opening: What takes time then.
    """

    def __init__(self, agent: Talker) -> None:
        self.alive: list[str] = []
        self.closes = True
        self.flavors: list[str] = []
        self.on_open: Callable[[Sandbox], None] = lambda sandbox: None
        self.opening: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self._agent = agent

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        sandbox = Box(spec, self._agent)
        self.on_open(sandbox)
        await self.opening()
        sandbox.flavor = self.flavors.pop(0) if self.flavors else None
        self.alive.append(sandbox.id)
        try:
            yield sandbox
        finally:
            self.alive.remove(sandbox.id)
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


@asynccontextmanager
async def open_bench(
    path: Path, tasks: Sequence[str] = ("t-1", "t-2"), max_errors: int = 0, **parts: Any
) -> AsyncIterator[Bench]:
    """A bench whose run directory is `path`. In the end nothing of it may run."""
    agent, engine = parts.get("agent") or Talker(), parts.get("engine") or Shaky(Random(1), {"ok": 1})
    grader, witness = Approving(), Witness()
    provider, run, requests = CountedProvider(agent), make_run(path), []
    for name in tasks:
        requests.append(make_request(make_task(name), spec=SandboxSpec(labels={"rollout": name})))

    async def prepare(sandbox: Sandbox, task: Task, *, hide: bool) -> None:
        """There is no repository."""

    async def export(sandbox: Sandbox, base: None, *, timeout: float) -> Change:
        return Change(b"the patch")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "prepare_repository", prepare)
        patched.setattr(loop, "export_change", export)
        async with engine, InterceptionServer() as server:
            context = RunContext(agent, provider, grader, (server, engine), None, run.redactor)
            site, executor = LocalSite(context, path / FOLDERS), LocalExecutor()
            executor._site, executor._engine = site, engine
            runner = Runner(requests, executor, engine, run, [], concurrency=2, max_errors=max_errors)
            runner.observe(witness)
            with anyio.fail_after(PATIENCE):
                yield Bench(runner, run, agent, engine, provider, grader, witness)
    assert provider.alive == []
    assert site._running == {}
