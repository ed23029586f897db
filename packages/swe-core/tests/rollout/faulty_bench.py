"""The bench with three rollouts, whose collaborators fail at a call named by the test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from pydantic import BaseModel

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, HostTool
from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Sampled, Usage
from swe_core.api.grader import Grade, Graded
from swe_core.api.limits import Budgets
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.sandbox import Sandbox, SandboxSpec, Stream
from swe_core.api.task import Task
from swe_core.interception.dialects.base import ParsedRequest, Reply
from swe_core.interception.dialects.chat import ChatCompletions
from swe_core.rollout import loop
from swe_core.rollout.run_directory import RolloutFolder, RunDirectory
from swe_core.sandboxing.repository.patch import Change

from ..interception.helpers import sampled
from .runner_bench import Approving, Box, Caller, CountedProvider, Inside, Talker, Witness, open_bench

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


class Agent(Talker):
    """An agent each of whose methods may fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        return {"/tmp/settings": b"{}"}

    def tools(self, ctx: AgentContext) -> Sequence[HostTool[Any]]:
        async def look(arguments: Nothing) -> str:
            return await self._faults.wait("tool.run", f"{ctx.task.instance_id}-0", "seen")

        return [HostTool("look", "Looks.", Nothing, look)]

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        name = BAD if BAD in line else "another"
        return self._faults.call("agent.parse_event", name, super().parse_event(line))

    def failure(self, ended: AgentExit) -> str | None:
        return self._faults.call("agent.failure", ended.stderr_tail, super().failure(ended))


def name_of(one: Any) -> str:
    """The rollout of a box, or of a process in it."""
    return f"{getattr(one, '_box', one).id}-0"


async def talk(faults: Faults, name: str, caller: Caller) -> AsyncIterator[bytes]:
    """What the agent's program does: two calls, and the use of a tool."""
    messages = [("user", name)]
    for stream in (True, False):
        if not stream and name != BAD:  # what happens to that one, happens beside this one
            await faults.over.wait()
        await caller.ask(*messages, stream=stream)
        yield name.encode() + b"\n"
        messages.append(("assistant", "what it said"))
    await caller.use("look")


def disturb(faults: Faults, patched: pytest.MonkeyPatch) -> None:
    """Let the calls of the bench's collaborators fail."""

    def awaited(kind: type, method: str, point: str) -> None:
        real = getattr(kind, method)

        async def call(one: Any, *args: Any, **more: Any) -> Any:
            return await faults.wait(point, name_of(one), await real(one, *args, **more))

        patched.setattr(kind, method, call)

    def told(method: str) -> None:
        real = getattr(Agent, method)

        def call(agent: Agent, ctx: AgentContext) -> Any:
            return faults.call(f"agent.{method}", f"{ctx.task.instance_id}-0", real(agent, ctx))

        patched.setattr(Agent, method, call)

    def observed(method: str) -> None:
        real = getattr(Witness, method)

        def call(witness: Witness, what: Any, *more: Any) -> None:
            name = what if isinstance(what, str) else what.id
            if (name, method) == (BAD, "phase"):
                faults.phase = more[0]
            faults.call(f"observer.{method}", name)
            real(witness, what, *more)

        patched.setattr(Witness, method, call)

    async def output(process: Inside) -> AsyncIterator[tuple[Stream, bytes]]:
        name = name_of(process)
        if process._env is not None:
            yield "stderr", name.encode()
            async for said in talk(faults, name, Caller(process._env)):
                yield await faults.wait("process.output", name, ("stdout", said))
        await faults.wait("process.output-end", name)

    @asynccontextmanager
    async def reach(box: Box, endpoint: str) -> AsyncIterator[str]:
        yield await faults.wait("sandbox.reach", name_of(box), endpoint)

    opened, add_turn, reply = CountedProvider.open, RolloutFolder.add_turn, ChatCompletions.reply

    @asynccontextmanager
    async def opening(provider: CountedProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with opened(provider, spec) as box:
            given = await faults.wait("provider.open", name_of(box), box)
            try:
                yield given
            finally:
                await faults.wait("provider.close", name_of(box))

    async def grade(
        self: Approving, task: Task, patch: bytes, provider: Any, spec: SandboxSpec, timeout: float
    ) -> Graded:
        async with provider.open(spec) as sandbox:
            await sandbox.exec(["true"])
        graded = Graded(grade=Grade(resolved=True), log=b"passed")
        return await faults.wait("grader.grade", f"{spec.labels['rollout']}-0", graded)

    async def prepare(sandbox: Sandbox, task: Task, *, hide: bool) -> None:
        await sandbox.exec(["git"])

    async def export(sandbox: Sandbox, base: None, *, timeout: float) -> Change:
        await sandbox.exec(["git"])
        return Change(b"the patch")

    def adding(self: RolloutFolder, turn: Turn) -> None:
        faults.call("folder.add_turn", self.path.name)
        add_turn(self, turn)

    def replying(self: ChatCompletions, asked: ParsedRequest, model: str) -> Reply:
        name, real = str(asked.messages[0]["content"]), reply(self, asked, model)

        def told(part: str, write: Callable[[Any], bytes], what: Any) -> Any:
            return faults.call(f"reply.{part}", name, write(what))

        for part in ("body", "delta", "end"):
            setattr(real, part, partial(told, part, getattr(real, part)))
        return faults.call("dialect.reply", name, real)

    for kind, method, point in (
        (Inside, "wait", "process.wait"),
        (Inside, "kill", "process.kill"),
        (Box, "start", "sandbox.start"),
        (Box, "kill_all", "sandbox.kill_all"),
    ):
        awaited(kind, method, point)
    for method in ("files", "command", "env", "stdin", "tools"):
        told(method)
    for method in ("started", "phase", "turn", "finished"):
        observed(method)
    for owner, name, other in (
        (Inside, "output", output),
        (Box, "reach", reach),
        (CountedProvider, "open", opening),
        (Approving, "grade", grade),
        (loop, "prepare_repository", prepare),
        (loop, "export_change", export),
        (RolloutFolder, "add_turn", adding),
        (ChatCompletions, "reply", replying),
    ):
        patched.setattr(owner, name, other)


async def run_three(path: Path, faults: Faults, patch: pytest.MonkeyPatch) -> RunDirectory:
    """Run three rollouts; `BAD` is disturbed while the others wait for their second call."""
    parts = {"agent": Agent(faults), "engine": Typing(faults)}
    async with open_bench(path, ("one", "bad", "two"), **parts) as bench:
        with patch.context() as patched:
            disturb(faults, patched)
            runner = bench.runner
            runner.concurrency = 3
            run_one: Callable[[RolloutRequest], Awaitable[Rollout]] = runner.run
            if faults.kind == "hangs":
                budget = {"budget": Budgets(wall=0.3, grace=0)}
                runner.requests = [
                    one.model_copy(update=budget if one.id == BAD else {}) for one in runner.requests
                ]

            async def running(request: RolloutRequest) -> Rollout:
                try:
                    return await run_one(request)
                finally:
                    if request.id == BAD:
                        faults.over.set()

            patched.setattr(runner, "run", running)
            try:
                await runner.run_all()
            finally:
                faults.release.set()
            await anyio.wait_all_tasks_blocked()  # what hung and was abandoned ends
    return bench.run


def comparable(run: RunDirectory) -> dict[str, Any]:
    """What was recorded of each rollout, without times."""
    records = {}
    for rollout in run.rollouts():
        record = rollout.model_dump(mode="json", exclude={"started_at", "seconds", "phases"})
        phases = rollout.phases.model_dump().items()
        record["phases"] = {name for name, seconds in phases if seconds is not None}
        for one in record["sandboxes"]:
            del one["seconds"]
        times = {"started_at", "seconds"}
        record["on disk"] = [turn.model_dump(mode="json", exclude=times) for turn in run.turns(rollout.id)]
        record["files"] = sorted(file.name for file in (run.path / "rollouts" / rollout.id).iterdir())
        records[rollout.id] = record
    return records
