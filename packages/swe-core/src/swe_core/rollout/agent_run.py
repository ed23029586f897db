"""One run of an agent inside an open sandbox: start, answer, watch, and say whether it ended well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, AgentSpec
from swe_core.api.engine import EngineSession
from swe_core.api.records import Turn
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.sandbox import Process, Sandbox, Stream
from swe_core.api.task import Task
from swe_core.errors import AgentError, NoLLMCall, SandboxError, raised_as
from swe_core.interception.gate import Gate
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.system.detached import closed


@dataclass(slots=True)
class AgentRun:
    """What is known of an agent's run so far, also when it fails: its gate, and its exit code at the end."""

    gate: Gate | None = None
    exit_code: int | None = None


async def run_agent(
    request: RolloutRequest,
    parts: RunContext,
    sandbox: Sandbox,
    folder: RolloutFolder,
    observer: Observer,
    run: AgentRun,
) -> None:
    """Run the agent's process to its end, its LLM calls answered by the host. An agent that has submitted
    its work, or runs on although a budget has run out, is ended, which is no failure.

    Raises:
        AgentError: It failed, overran its time, or made no LLM call.
        EngineError: The engine failed for good; the agent was ended at once.
        SandboxError: The sandbox failed.
    """
    agent, limits = parts.agent, request.limits
    async with AsyncExitStack() as stack:
        gate, origin, base_url, api_key = None, "", "", ""
        if parts.black_box is not None:
            base_url, api_key = parts.black_box.url, parts.black_box.key
        elif parts.gate is not None:
            server, engine = parts.gate

            def on_turn(turn: Turn) -> None:
                folder.add_turn(turn)
                observer.turn(request.id, turn)

            who = EngineSession(request.id, request.task.instance_id, request.attempt, request.agent)
            gate = await stack.enter_async_context(
                server.session(engine, who, on_turn, request.budget, folder.add_undelivered)
            )
            run.gate = gate
            parts.redactor.add(gate.token)
            with raised_as(SandboxError):
                origin = await stack.enter_async_context(sandbox.reach(server.url))
                base_url = origin + gate.path
            api_key = gate.token
        ctx = AgentContext(
            task=request.task,
            prompt=build_prompt(request.task),
            base_url=base_url,
            api_key=api_key,
            model=request.model,
            workdir=request.task.workdir,
            tools_url=f"{base_url}/tools" if gate else "",
            exit_url=origin + gate.exit_path if gate else "",
        )
        if gate is not None:
            gate.tools.offer(agent.tools(ctx))
        output = AgentOutput(agent, folder)
        with anyio.move_on_after(limits.agent) as clock:
            run.exit_code = await _watched(gate, request, agent, ctx, sandbox, output)
    if gate is not None and gate.failure is not None:
        raise gate.failure
    silent = gate is not None and not gate.called.is_set()
    if gate is None or not (gate.submitted or gate.ended_by is not None):
        if clock.cancelled_caught or run.exit_code is None:
            calls = " and made no LLM call through the endpoint" if silent else ""
            raise AgentError(
                f"the agent {agent.name!r} did not end within its budget of {limits.agent:g} s "
                f"(limits.agent){calls}"
            )
        ended = AgentExit(run.exit_code, output.last_error, output.stderr_tail)
        failure = agent.failure(ended)
        if failure is not None:
            raise AgentError(failure)
    if gate is not None and silent:
        likely = "it did not get as far as that, or is configured to call another one"
        raise NoLLMCall(
            f"the agent {agent.name!r} made no LLM call through the endpoint: {_cause(gate, likely)}"
        )


def _cause(gate: Gate, likely: str) -> str:
    """Why no LLM call was made: what the gate knows of it, else what is `likely`."""
    if not gate.refusals:
        return likely
    which = "its only request" if gate.refusals == 1 else f"each of its {gate.refusals} requests"
    return f"{which} was refused: {gate.refusal}"


async def _run_process(agent: AgentSpec, ctx: AgentContext, sandbox: Sandbox, output: AgentOutput) -> int:
    for path, content in agent.files(ctx).items():
        with raised_as(SandboxError):
            await sandbox.write(path, content, mode=0o600)
    command, env, stdin = list(agent.command(ctx)), dict(agent.env(ctx)), agent.stdin(ctx)
    with raised_as(SandboxError):
        process = await sandbox.start(command, cwd=ctx.workdir, env=env, stdin=stdin)
    try:
        async for stream, chunk in _printed(process):
            output.feed(stream, chunk)
        with raised_as(SandboxError):
            exit_code = await process.wait()
        if not isinstance(exit_code, int):
            raise SandboxError(f"the agent's process ended with {exit_code!r}, expected an exit code")
        return exit_code
    finally:
        try:
            with raised_as(SandboxError):
                await closed(process.kill, "the end of the agent's process", SandboxError)
        finally:
            output.close()


async def _printed(process: Process) -> AsyncIterator[tuple[Stream, bytes]]:
    """What the process prints; what goes wrong with it is the sandbox's failure."""
    with raised_as(SandboxError):
        async for stream, chunk in process.output():
            yield stream, chunk


async def _watched(
    gate: Gate | None,
    request: RolloutRequest,
    agent: AgentSpec,
    ctx: AgentContext,
    sandbox: Sandbox,
    output: AgentOutput,
) -> int | None:
    """The agent's exit code; None where it was ended: because the engine failed, for then the rollout is
    lost and the agent would only go on retrying, or because it ran on when it was to end.

    Raises:
        NoLLMCall: Its first call did not come in time.
    """
    if gate is None:
        return await _run_process(agent, ctx, sandbox, output)
    exit_code: int | None = None
    problem: Exception | None = None

    async def until_failed(scope: anyio.CancelScope) -> None:
        await gate.failed()
        scope.cancel()

    async def until_over(scope: anyio.CancelScope) -> None:
        await gate.ending()
        await anyio.sleep(request.budget.grace)
        scope.cancel()

    async def until_late(scope: anyio.CancelScope) -> None:
        nonlocal problem
        with anyio.move_on_after(request.limits.first_call) as clock:
            await gate.called.wait()
        if clock.cancelled_caught:
            likely = (
                "it did not get as far as that, is configured to call another endpoint, or cannot reach this "
                "one from inside its sandbox"
            )
            problem = NoLLMCall(
                f"the agent {agent.name!r} made no LLM call within {request.limits.first_call:g} s "
                f"(limits.first_call): {_cause(gate, likely)}"
            )
            scope.cancel()

    gate.start()
    async with anyio.create_task_group() as group:
        for watch in (until_failed, until_over, until_late):
            group.start_soon(watch, group.cancel_scope)
        try:
            exit_code = await _run_process(agent, ctx, sandbox, output)
        except Exception as error:  # carried out of the task group, which would wrap it
            problem = error
        group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return exit_code


MAX_LINE = 4 * 1024 * 1024
"""Bytes of one stdout line that are still parsed as an event; a longer one is only logged."""
STDERR_TAIL = 4000


class AgentOutput:
    """Splits an agent's output into lines, logs them and turns them into events; memory is bounded.

    Args:
        agent: Whose `parse_event` reads stdout.
        folder: Where the log and the transcript go.
    """

    def __init__(self, agent: AgentSpec, folder: RolloutFolder) -> None:
        self._agent = agent
        self._folder = folder
        self._line = bytearray()
        self._skipping = False
        self._tail = b""
        self.last_error: AgentEvent | None = None

    def feed(self, stream: Stream, chunk: bytes) -> None:
        """Take in one chunk of stdout or stderr."""
        self._folder.add_output(chunk)
        if stream == "stderr":
            self._tail = (self._tail + chunk)[-STDERR_TAIL:]
            return
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            self._extend(piece)
            self._end_line()
        self._extend(rest)

    def close(self) -> None:
        """Take the last line as it is, whether or not it was ended."""
        if self._line:
            self._end_line()

    @property
    def stderr_tail(self) -> str:
        """The end of standard error, as text."""
        return self._tail.decode(errors="replace")

    def _extend(self, piece: bytes) -> None:
        if self._skipping:
            return
        self._line += piece
        if len(self._line) > MAX_LINE:
            self._skipping = True
            self._line.clear()

    def _end_line(self) -> None:
        line = self._line.decode(errors="replace")
        self._line.clear()
        if self._skipping:
            self._skipping = False
            events = [AgentEvent(kind="info", text=f"a line of more than {MAX_LINE} bytes was left out")]
        else:
            events = list(self._agent.parse_event(line))
        for event in events:
            self._folder.add_event(event)
            if event.kind == "error":
                self.last_error = event
            elif event.kind != "info":
                self.last_error = None


_TEMPLATE = """\
<repository>
{workdir}
</repository>

<issue>
{problem_statement}
</issue>

Fix the issue above by changing the source code of the repository at {workdir}. Read the code first, \
change as little as needed, and check your change by running what the repository offers. Hidden tests decide \
whether the issue is fixed; do not change existing tests. Work alone: nobody answers questions. \
When you are done, end with a short summary of what you changed.\
"""


def build_prompt(task: Task) -> str:
    """The user prompt for `task`: its problem statement, where the repository is and what counts."""
    return _TEMPLATE.format(workdir=task.workdir, problem_statement=task.problem_statement.strip())
