"""A runner of rollouts with in-process collaborators that fail at a call named by the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anyio
import pytest
from pydantic import BaseModel

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, AgentSpec, HostTool
from swe_core.api.engine import ChatRequest, Completion, Delta, Emit, Engine, EngineSession, Sampled, Usage
from swe_core.api.grader import Grade, Graded
from swe_core.api.limits import Budgets
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.api.sandbox import Process, Sandbox, SandboxSpec, Stream
from swe_core.api.task import Task
from swe_core.interception.dialects.base import ParsedRequest, Reply
from swe_core.interception.dialects.chat import ChatCompletions
from swe_core.interception.server import InterceptionServer
from swe_core.rollout import loop
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RolloutFolder, RunDirectory
from swe_core.rollout.runner import Runner
from swe_testing.records import make_request, make_run, make_task

from ..interception.helpers import sampled
from .runner_bench import local_executor

Kind = Literal["raises", "odd", "cancelled", "wrong", "hangs"]
BROKEN = "the plugin is broken"
_LOGGED = ("dialect.", "observer.", "reply.", "tool.")
"""Errors at these points are logged, and pytest-xdist cannot send a log that is not UTF-8."""
BAD = "bad-0"
"""The rollout that is disturbed."""


class Odd(Exception):
    """Fails even at saying what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Faults:
    """Decides for each call of a collaborator whether it fails.

    Attributes:
        seen: The calls that were made for the rollout `BAD`, by their points.
        point, nth, kind: Which of them fails and how; all succeed where the point is empty.
        hit: In which phase it was when it failed; None before.
    """

    point: str = ""
    nth: int = 0
    kind: Kind = "raises"
    seen: Counter[str] = field(default_factory=Counter)
    phase: str = ""
    hit: str | None = None
    over: anyio.Event = field(default_factory=anyio.Event)
    release: anyio.Event = field(default_factory=anyio.Event)

    def _falls_on(self, point: str, rollout: str) -> bool:
        if rollout != BAD:
            return False
        self.seen[point] += 1
        if (point, self.seen[point] - 1) != (self.point, self.nth):
            return False
        self.hit = self.phase
        return True

    def call(self, point: str, rollout: str, result: Any = None) -> Any:
        """What the call returns."""
        if not self._falls_on(point, rollout):
            return result
        if self.kind == "odd":
            raise Odd
        if self.kind == "cancelled":
            raise asyncio.CancelledError
        if self.kind == "wrong":
            return object()
        raise RuntimeError(BROKEN + ("" if point.startswith(_LOGGED) else "\ud800"))

    async def wait(self, point: str, rollout: str, result: Any = None) -> Any:
        """Do the same for an awaited call. It ignores cancellation while it hangs."""
        if self.kind != "hangs" or self.point != point:
            return self.call(point, rollout, result)
        if self._falls_on(point, rollout):
            with anyio.CancelScope(shield=True):
                await self.release.wait()
        return result


class Typing(Engine):
    """Owns its tokens, streams two pieces, and extends its last reply."""

    model = "typing"

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._last: dict[str, Sampled] = {}

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        name, faults = session.rollout_id, self._faults
        text = f"{name} says {len(request.messages)}"
        last = self._last.get(name)
        tokens = sampled(text, extends=last)
        request.progress.sampled = self._last[name] = tokens
        for piece in (text[:3], text[3:]) if emit else ():
            await emit(faults.call("engine.piece", name, {"content": piece}))
        reply = Completion(
            {"role": "assistant", "content": text}, usage=Usage(completion_tokens=len(text)), sampled=tokens
        )
        return await faults.wait("engine.complete", name, reply)

    async def end(self, session: EngineSession) -> None:
        await self._faults.wait("engine.end", session.rollout_id)


class Nothing(BaseModel):
    """What the tool takes."""


class Inside(Process):
    """A command: git, which says nothing, or the agent, which talks to its endpoint."""

    def __init__(self, faults: Faults, name: str, env: Mapping[str, str] | None) -> None:
        self._faults = faults
        self._name = name
        self._env = env

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        if self._env is not None:
            yield "stderr", self._name.encode()
            async for said in self._talk(self._env["BASE"], self._env["KEY"]):
                yield await self._faults.wait("process.output", self._name, ("stdout", said))
        await self._faults.wait("process.output-end", self._name)

    async def _talk(self, base: str, key: str) -> AsyncIterator[bytes]:
        messages = [{"role": "user", "content": self._name}]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
            for stream in (True, False):
                if not stream and self._name != BAD:  # what happens to that one, happens beside this one
                    await self._faults.over.wait()
                body = {"messages": messages, "stream": stream}
                async with http.post(f"{base}/chat/completions", json=body) as reply:
                    await reply.read()
                yield self._name.encode() + b"\n"
                messages.append({"role": "assistant", "content": "what it said"})
            async with http.post(f"{base}/tools/look", data=b"{}") as reply:
                await reply.read()

    async def wait(self) -> int:
        return await self._faults.wait("process.wait", self._name, 0)

    async def kill(self) -> None:
        await self._faults.wait("process.kill", self._name)


class Box(Sandbox):
    """A sandbox with nothing in it."""

    def __init__(self, faults: Faults, spec: SandboxSpec) -> None:
        self.id = self._name = spec.labels["rollout"]
        self.spec = spec
        self._faults = faults

    async def start(self, argv: Sequence[str], **more: Any) -> Process:
        env = more.get("env") if argv[0] == "agent" else None
        return await self._faults.wait("sandbox.start", self._name, Inside(self._faults, self._name, env))

    async def kill_all(self) -> None:
        await self._faults.wait("sandbox.kill_all", self._name)

    @asynccontextmanager
    async def reach(self, endpoint: str) -> AsyncIterator[str]:
        yield await self._faults.wait("sandbox.reach", self._name, endpoint)


class Boxes:
    """A provider of them."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.open_now = 0

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        name = spec.labels["rollout"]
        box = await self._faults.wait("provider.open", name, Box(self._faults, spec))
        self.open_now += 1
        try:
            yield box
        finally:
            self.open_now -= 1
            await self._faults.wait("provider.close", name)


class Approving:
    """A grader."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def grade(
        self, task: Task, patch: bytes, provider: Any, spec: SandboxSpec, timeout: float
    ) -> Graded:
        async with provider.open(spec) as sandbox:
            await sandbox.exec(["true"])
        graded = Graded(grade=Grade(resolved=True), log=b"passed")
        return await self._faults.wait("grader.grade", spec.labels["rollout"], graded)


class Agent(AgentSpec):
    """An agent each of whose methods may fail."""

    name = "agent"

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def _say(self, point: str, ctx: AgentContext, result: Any) -> Any:
        return self._faults.call(f"agent.{point}", f"{ctx.task.instance_id}-0", result)

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        return self._say("files", ctx, {"/tmp/settings": b"{}"})

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return self._say("command", ctx, ["agent"])

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return self._say("env", ctx, {"BASE": ctx.base_url, "KEY": ctx.api_key})

    def stdin(self, ctx: AgentContext) -> bytes | None:
        return self._say("stdin", ctx, None)

    def tools(self, ctx: AgentContext) -> Sequence[HostTool[Any]]:
        name = f"{ctx.task.instance_id}-0"

        async def look(arguments: Nothing) -> str:
            return await self._faults.wait("tool.run", name, "seen")

        return self._say("tools", ctx, [HostTool("look", "Looks.", Nothing, look)])

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        name = BAD if BAD in line else "another"
        return self._faults.call("agent.parse_event", name, super().parse_event(line))

    def failure(self, ended: AgentExit) -> str | None:
        return self._faults.call("agent.failure", ended.stderr_tail, super().failure(ended))


class Told(Reply):
    """A reply in the agent's dialect, each of whose parts may fail."""

    def __init__(self, faults: Faults, name: str, reply: Reply) -> None:
        self._faults = faults
        self._name = name
        self._reply = reply

    def body(self, completion: Completion) -> bytes:
        return self._faults.call("reply.body", self._name, self._reply.body(completion))

    def delta(self, delta: Delta) -> bytes:
        return self._faults.call("reply.delta", self._name, self._reply.delta(delta))

    def end(self, completion: Completion) -> bytes:
        return self._faults.call("reply.end", self._name, self._reply.end(completion))

    def failed(self, problem: Any) -> bytes:
        return self._reply.failed(problem)


class Onlooker:
    """An observer."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def started(self, request: RolloutRequest) -> None:
        self._faults.call("observer.started", request.id)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        if rollout_id == BAD:
            self._faults.phase = phase
        self._faults.call("observer.phase", rollout_id)

    def turn(self, rollout_id: str, turn: Turn) -> None:
        self._faults.call("observer.turn", rollout_id)

    def finished(self, rollout: Rollout) -> None:
        self._faults.call("observer.finished", rollout.id)


async def run_three(path: Path, faults: Faults, patch: pytest.MonkeyPatch) -> RunDirectory:
    """Run three rollouts; `BAD` is disturbed while the others wait for their second call."""

    async def prepare(sandbox: Sandbox, task: Task, *, hide: bool) -> None:
        await sandbox.exec(["git"])

    async def export(sandbox: Sandbox, base: None, *, timeout: float) -> bytes:
        await sandbox.exec(["git"])
        return b"the patch"

    add_turn, reply = RolloutFolder.add_turn, ChatCompletions.reply

    def adding(self: RolloutFolder, turn: Turn) -> None:
        faults.call("folder.add_turn", self.path.name)
        add_turn(self, turn)

    def replying(self: ChatCompletions, asked: ParsedRequest, model: str) -> Reply:
        name = str(asked.messages[0]["content"])
        return faults.call("dialect.reply", name, Told(faults, name, reply(self, asked, model)))

    run, provider = make_run(path), Boxes(faults)
    requests = [
        make_request(
            make_task(name),
            spec=SandboxSpec(labels={"rollout": f"{name}-0"}),
            budget=Budgets(wall=0.3, grace=0) if faults.kind == "hangs" and name == "bad" else Budgets(),
        )
        for name in ("one", "bad", "two")
    ]
    with patch.context() as patched:
        patched.setattr(loop, "prepare_repository", prepare)
        patched.setattr(loop, "export_patch", export)
        patched.setattr(RolloutFolder, "add_turn", adding)
        patched.setattr(ChatCompletions, "reply", replying)
        engine = Typing(faults)
        async with engine, InterceptionServer() as server:
            parts = RunContext(
                Agent(faults), provider, Approving(faults), (server, engine), None, run.redactor
            )
            executor = local_executor(parts, run)
            runner = Runner(requests, executor, engine, run, [Onlooker(faults)], concurrency=3)
            run_one: Callable[[RolloutRequest], Awaitable[Rollout]] = runner.run

            async def running(request: RolloutRequest) -> Rollout:
                try:
                    return await run_one(request)
                finally:
                    if request.id == BAD:
                        faults.over.set()

            patched.setattr(runner, "run", running)
            try:
                with anyio.fail_after(60):
                    await runner.run_all()
            finally:
                faults.release.set()
    assert provider.open_now == 0 or faults.kind == "hangs"
    return run


def comparable(run: RunDirectory) -> dict[str, Any]:
    """What was recorded of each rollout, without times."""
    return {rollout.id: _timeless(run, rollout) for rollout in run.rollouts()}


def _timeless(run: RunDirectory, rollout: Rollout) -> dict[str, Any]:
    record = rollout.model_dump(mode="json", exclude={"started_at", "seconds", "phases"})
    record["phases"] = {name for name, seconds in rollout.phases.model_dump().items() if seconds is not None}
    for one in record["sandboxes"]:
        del one["seconds"]
    turns = run.turns(rollout.id)
    folder = run.path / "rollouts" / rollout.id
    return {
        **record,
        "on disk": [turn.model_dump(mode="json", exclude={"started_at", "seconds"}) for turn in turns],
        "files": sorted(file.name for file in folder.iterdir()),
    }
