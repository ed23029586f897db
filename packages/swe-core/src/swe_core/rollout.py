"""THE loop: one rollout, top to bottom.

    open a sandbox → prepare (record the base) → run the agent, its LLM calls answered by the host
    → export the patch → close the sandbox → grade the patch in a fresh one

A bad rollout is data: whatever fails is classified by the boundary it crossed and becomes the record.
Only cancellation leaves the loop as an exception, after the rollout was recorded as cancelled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import anyio
from pydantic import Field

from swe_core.agent import AgentContext, AgentExit, AgentSpec
from swe_core.agent_output import AgentOutput
from swe_core.config import Limits
from swe_core.engine import Engine, EngineSession, Usage
from swe_core.errors import AgentError, Boundary, GraderError, NoLLMCall, SandboxError, boundary_of, sentence
from swe_core.grade import Grade, Grader
from swe_core.interception.server import InterceptionServer
from swe_core.interception.session import Gate
from swe_core.patch import PatchUnavailable, export_patch, record_base
from swe_core.prompt import build_prompt
from swe_core.record import Failure, Outcome, Phases, Record, Rollout, Turn
from swe_core.redact import Redactor
from swe_core.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.store import RolloutFolder
from swe_core.task import Task

Phase = Literal["open", "prepare", "agent", "export", "grade"]
_BOUNDARY: dict[Phase, Boundary] = {
    "open": "sandbox",
    "prepare": "sandbox",
    "agent": "agent",
    "export": "agent",
    "grade": "grader",
}
_FRESH = {"assets": (), "network": "none"}


class RolloutRequest(Record):
    """What to roll out. Serialisable: an executor elsewhere can run it from this and the same plugins."""

    id: str
    task: Task
    attempt: int = Field(ge=0)
    agent: str
    sandbox: str
    engine: str
    model: str
    spec: SandboxSpec
    limits: Limits


@dataclass(frozen=True, slots=True)
class BlackBox:
    """Black-box mode: where the agent calls the provider itself, with a key that the user hands over."""

    url: str
    key: str


@dataclass(frozen=True, slots=True)
class Parts:
    """The live objects that the rollouts of a run share; `gate` is the host's way to answer LLM calls."""

    agent: AgentSpec
    provider: SandboxProvider
    grader: Grader
    gate: tuple[InterceptionServer, Engine] | None
    black_box: BlackBox | None
    redactor: Redactor


class Observer(Protocol):
    """Told what happens while it happens; called in the event loop, so it returns quickly."""

    def started(self, request: RolloutRequest) -> None:
        """A rollout begins."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """It enters a phase."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """An LLM call of it was answered."""

    def finished(self, rollout: Rollout) -> None:
        """It is over and on disk. Called by the runner, after it was written."""


@dataclass(slots=True)
class _Notes:
    """What is known of a running rollout so far; becomes its record."""

    observer: Observer
    rollout_id: str
    boundary: Boundary = "sandbox"
    phases: dict[str, float] = field(default_factory=dict)
    gate: Gate | None = None
    patch: bytes = b""
    exit_code: int | None = None
    grade: Grade | None = None
    failure: Failure | None = None

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        self.boundary = _BOUNDARY[name]
        self.observer.phase(self.rollout_id, name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = time.monotonic() - started


async def run_rollout(
    request: RolloutRequest,
    parts: Parts,
    folder: RolloutFolder,
    observer: Observer,
    done: Callable[[Rollout], None],
) -> None:
    """Run one rollout and hand its record to `done`, exactly once, whatever happens.

    Raises:
        Nothing but the cancellation of the task it runs in.
    """
    notes = _Notes(observer, request.id)
    started_at, started = datetime.now(UTC), time.monotonic()
    observer.started(request)
    outcome: Outcome = "cancelled"
    try:
        await _collect_patch(request, parts, folder, notes)
        await _grade(request, parts, folder, notes)
        outcome = "resolved" if notes.grade and notes.grade.resolved else "unresolved"
    except PatchUnavailable as error:  # the policy's own deed, so a verdict and not an error
        notes.grade = Grade(resolved=False, reason=sentence(error))
        outcome = "unresolved"
    except Exception as error:  # the boundary that records: a bad rollout is data
        outcome = "error"
        notes.failure = Failure(
            boundary=boundary_of(error, notes.boundary),
            type=type(error).__name__,
            message=parts.redactor.text(sentence(error)),
        )
    finally:
        if notes.grade is not None:
            folder.put("grade.json", notes.grade.model_dump_json(indent=2).encode() + b"\n")
        folder.close()
        done(_record(request, notes, outcome, started_at, time.monotonic() - started))


async def _collect_patch(request: RolloutRequest, parts: Parts, folder: RolloutFolder, notes: _Notes) -> None:
    """From opening the agent's sandbox to the exported patch; the sandbox is closed on return."""
    limits = request.limits
    agent_failure: Exception | None = None
    with anyio.CancelScope(deadline=anyio.current_time() + limits.open) as opening:
        async with AsyncExitStack() as stack:
            with notes.phase("open"):
                sandbox = await stack.enter_async_context(parts.provider.open(request.spec))
            opening.deadline = math.inf  # only opening is bounded by this scope, which must outlive it
            with notes.phase("prepare"), _budget("prepare", limits.prepare, SandboxError):
                base = await record_base(sandbox)
            with notes.phase("agent"):
                try:
                    await _run_agent(request, parts, sandbox, folder, notes)
                except Exception as error:  # kept until what the agent did is saved
                    agent_failure = error
                    notes.boundary = boundary_of(error, "agent")
            boundary = notes.boundary
            try:
                with notes.phase("export"):
                    await sandbox.kill_all()  # nothing that the agent left behind changes files from here on
                    notes.patch = await export_patch(sandbox, base, timeout=limits.prepare)
                folder.put_patch(notes.patch)
            except Exception:
                if agent_failure is None:
                    raise
            if agent_failure is not None:
                notes.boundary = boundary
                raise agent_failure
    if opening.cancelled_caught:
        raise SandboxError(f"the sandbox did not open within its budget of {limits.open:g} s (limits.open)")


async def _run_agent(
    request: RolloutRequest, parts: Parts, sandbox: Sandbox, folder: RolloutFolder, notes: _Notes
) -> None:
    """Run the agent's process to its end and say whether it ended well."""
    agent, limit = parts.agent, request.limits.agent
    async with AsyncExitStack() as stack:
        gate, base_url, api_key = None, "", ""
        if parts.black_box is not None:
            base_url, api_key = parts.black_box.url, parts.black_box.key
        elif parts.gate is not None:
            server, engine = parts.gate

            def on_turn(turn: Turn) -> None:
                folder.add_turn(turn)
                notes.observer.turn(request.id, turn)

            who = EngineSession(request.id, request.task.instance_id, request.attempt, request.agent)
            gate = await stack.enter_async_context(server.session(engine, who, on_turn))
            notes.gate = gate
            parts.redactor.add(gate.token)
            stack.callback(parts.redactor.discard, gate.token)
            base_url = await stack.enter_async_context(sandbox.reach(server.url)) + gate.path
            api_key = gate.token
        ctx = AgentContext(
            task=request.task,
            prompt=build_prompt(request.task),
            base_url=base_url,
            api_key=api_key,
            model=request.model,
            workdir=request.task.workdir,
        )
        output = AgentOutput(agent, folder)
        with anyio.move_on_after(limit) as clock:
            notes.exit_code = await _unless_engine_fails(gate, agent, ctx, sandbox, output)
    if gate is not None and gate.failure is not None:
        raise gate.failure
    silent = gate is not None and gate.turns == 0
    if clock.cancelled_caught or notes.exit_code is None:
        calls = " and made no LLM call through the endpoint" if silent else ""
        raise AgentError(
            f"the agent {agent.name!r} did not end within its budget of {limit:g} s (limits.agent){calls}"
        )
    ended = AgentExit(notes.exit_code, output.last_error, output.stderr_tail)
    failure = agent.failure(ended)
    if failure is not None:
        raise AgentError(failure)
    if silent:
        raise NoLLMCall(
            f"the agent {agent.name!r} made no LLM call through the endpoint: it ended at once, or is "
            "configured to call another one"
        )


async def _run_process(agent: AgentSpec, ctx: AgentContext, sandbox: Sandbox, output: AgentOutput) -> int:
    for path, content in agent.files(ctx).items():
        await sandbox.write(path, content, mode=0o600)
    process = await sandbox.start(
        agent.command(ctx), cwd=ctx.workdir, env=agent.env(ctx), stdin=agent.stdin(ctx)
    )
    try:
        async for stream, chunk in process.output():
            output.feed(stream, chunk)
        return await process.wait()
    finally:
        output.close()
        with anyio.CancelScope(shield=True):
            await process.kill()


async def _unless_engine_fails(
    gate: Gate | None, agent: AgentSpec, ctx: AgentContext, sandbox: Sandbox, output: AgentOutput
) -> int | None:
    """The agent's exit code; None when the engine failed, for then the rollout is lost and the agent,
    which would go on retrying, is ended at once."""
    if gate is None:
        return await _run_process(agent, ctx, sandbox, output)
    exit_code: int | None = None
    problem: Exception | None = None

    async def watch(scope: anyio.CancelScope) -> None:
        await gate.failed()
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        try:
            exit_code = await _run_process(agent, ctx, sandbox, output)
        except Exception as error:  # carried out of the task group, which would wrap it
            problem = error
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return exit_code


async def _grade(request: RolloutRequest, parts: Parts, folder: RolloutFolder, notes: _Notes) -> None:
    limits = request.limits
    spec = request.spec.model_copy(update=_FRESH)
    allowed = limits.open + limits.prepare + limits.grade
    with notes.phase("grade"), _budget("grade", allowed, GraderError):
        graded = await parts.grader.grade(request.task, notes.patch, parts.provider, spec, limits.grade)
    folder.put("test.log", graded.log)
    notes.grade = graded.grade


@contextmanager
def _budget(name: str, seconds: float, kind: type[Exception]) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise kind(f"the work of limits.{name} did not end within its budget of {seconds:g} s")


def _record(
    request: RolloutRequest, notes: _Notes, outcome: Outcome, started_at: datetime, seconds: float
) -> Rollout:
    known: dict[str, Any] = {name: round(value, 4) for name, value in notes.phases.items()}
    reward = {"resolved": 1.0, "unresolved": 0.0}.get(outcome)
    return Rollout(
        id=request.id,
        task_id=request.task.instance_id,
        attempt=request.attempt,
        agent=request.agent,
        sandbox=request.sandbox,
        engine=request.engine,
        model=request.model,
        outcome=outcome,
        reward=reward,
        failure=notes.failure,
        grade=notes.grade,
        turns=notes.gate.turns if notes.gate else 0,
        usage=notes.gate.usage if notes.gate else Usage(),
        patch_bytes=len(notes.patch),
        agent_exit_code=notes.exit_code,
        phases=Phases(**known),
        started_at=started_at,
        seconds=round(seconds, 4),
    )
