"""One run of an agent in an open sandbox: start it, answer its calls, and judge how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import anyio

from swe_core.api import agent_contract
from swe_core.api.agent import AgentContext, AgentExit, AgentSpec, InteractiveAgent
from swe_core.api.engine import EngineSession
from swe_core.api.records import Turn
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.sandbox import Process, Sandbox, Stream
from swe_core.api.task import Task
from swe_core.errors import AgentError, AgentTimeout, EngineUnavailable, NoLLMCall, SandboxError, raised_as
from swe_core.interception.gate import Gate
from swe_core.rollout.agent_output import AgentOutput
from swe_core.rollout.dialogue import Dialogue, converse
from swe_core.rollout.missing_program import missing_program
from swe_core.rollout.run_context import RunContext
from swe_core.rollout.run_directory import RolloutFolder
from swe_core.rollout.task_environment import write_profile
from swe_core.system.detached import closed

_FAREWELL = 2.0
"""Seconds in which an agent may say that the engine has failed, which its log then shows."""
_PROFILE_TIMEOUT = 30.0
_NOT_STARTED = (126, 127)
"""Exit codes of a program that is not executable or missing, and of a shell that says so of another."""


@dataclass(slots=True)
class AgentRun:
    """The state of an agent's run, also of a failed one: its gate, and in the end its exit code."""

    gate: Gate | None = None
    exit_code: int | None = None

    @property
    def answered(self) -> bool:
        """Return whether the engine has answered a call of the policy's work, as far as the host knows."""
        return self.gate is not None and is_answered(self.gate)


def is_answered(gate: Gate) -> bool:
    """Return whether the engine has answered a call of the policy's work."""
    return gate.finish_reason is not None


async def run_agent(
    request: RolloutRequest,
    context: RunContext,
    sandbox: Sandbox,
    folder: RolloutFolder,
    observer: Observer,
    run: AgentRun,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the agent's process to its end while the host answers its LLM calls.

    The host ends an agent that has submitted its work, or that continues after a budget has run out.
    Neither is a failure.

    Args:
        environment: Variables of the task for the agent's process and its login shells.

    Raises:
        AgentError: The agent failed, exceeded its time (`AgentTimeout`), or made no LLM call.
        EngineError: The engine failed for good; the host ended the agent at once.
        SandboxError: The sandbox failed.
    """
    agent, limits = context.agent, request.limits
    async with AsyncExitStack() as stack:
        gate, origin, base_url, api_key = None, "", "", ""
        if context.black_box is not None:
            base_url, api_key = context.black_box.url, context.black_box.key
        elif context.gate is not None:
            server, engine = context.gate

            def on_turn(turn: Turn) -> None:
                folder.add_turn(turn)
                observer.turn(request.id, turn)

            who = EngineSession(request.id, request.task.instance_id, request.attempt, request.agent)
            gate = await stack.enter_async_context(
                server.session(
                    engine,
                    who,
                    on_turn,
                    request.budget,
                    folder.add_undelivered,
                    partial(agent_contract.auxiliary, agent),
                    partial(agent_contract.summary, agent),
                    request.summaries,
                    partial(agent_contract.own, agent),
                    folder.add_foreign,
                )
            )
            run.gate = gate
            context.redactor.add(gate.token)
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
            environment=environment,
        )
        if gate is not None:
            gate.tools.offer(agent_contract.tools(agent, ctx))
        output = AgentOutput(agent, folder)
        with anyio.move_on_after(limits.agent) as clock:
            run.exit_code = await _watched(gate, request, agent, ctx, sandbox, output)
    if gate is not None and gate.failure is not None:
        raise gate.failure
    if gate is not None and gate.trouble and not (gate.submitted or gate.ended_by):
        raise EngineUnavailable(f"{gate.trouble}, until the agent ended")
    silent = gate is not None and not gate.called.is_set()
    if gate is None or not (gate.submitted or gate.ended_by is not None):
        if clock.cancelled_caught or run.exit_code is None:
            calls = " and made no LLM call through the endpoint" if silent else ""
            raise AgentTimeout(
                f"the agent {agent.name!r} did not end within its budget of {limits.agent:g} s "
                f"(limits.agent){calls}"
            )
        ended = AgentExit(run.exit_code, output.last_error, output.stderr_tail)
        failure = agent_contract.failure(agent, ended)
        if failure is not None:
            raise AgentError(failure)
    if gate is not None and silent:
        likely = "it ended before its first call, or is configured to call another endpoint"
        raise NoLLMCall(
            f"the agent {agent.name!r} made no LLM call through the endpoint: {_cause(gate, likely)}"
        )


def _cause(gate: Gate, likely: str) -> str:
    """Return why the agent made no LLM call: its requests were refused, else what is `likely`."""
    if not gate.refusals:
        return likely
    which = "its only request" if gate.refusals == 1 else f"each of its {gate.refusals} requests"
    return f"{which} was refused: {gate.refusal}"


async def _run(
    agent: AgentSpec, ctx: AgentContext, sandbox: Sandbox, output: AgentOutput, gate: Gate | None
) -> int:
    """Run the agent to its end, and return its exit code."""
    await write_profile(sandbox, ctx.environment, _PROFILE_TIMEOUT)
    for path, content in agent_contract.files(agent, ctx).items():
        with raised_as(SandboxError):
            await sandbox.write(path, content, mode=0o600)
    if isinstance(agent, InteractiveAgent):
        try:
            return await converse(agent, ctx, Dialogue(agent, ctx, sandbox, output, gate))
        finally:
            output.close()
    return await _run_process(agent, ctx, sandbox, output, gate)


async def _run_process(
    agent: AgentSpec, ctx: AgentContext, sandbox: Sandbox, output: AgentOutput, gate: Gate | None
) -> int:
    command, env = agent_contract.command(agent, ctx), agent_contract.env(agent, ctx)
    stdin = agent_contract.stdin(agent, ctx)
    with raised_as(SandboxError):
        process = await sandbox.start(command, cwd=ctx.workdir, env=env, stdin=stdin)
    try:
        async for stream, chunk in _printed(process):
            output.feed(stream, chunk)
        with raised_as(SandboxError):
            exit_code = await process.wait()
        if not isinstance(exit_code, int):
            raise SandboxError(f"the agent's process ended with {exit_code!r}, expected an exit code")
        if exit_code in _NOT_STARTED and not (gate is not None and is_answered(gate)):
            missing = await missing_program(agent.name, command[0], sandbox, cwd=ctx.workdir, env=env)
            if missing is not None:
                raise AgentError(missing)
        return exit_code
    finally:
        try:
            with raised_as(SandboxError):
                await closed(process.kill, "the end of the agent's process", SandboxError)
        finally:
            output.close()


async def _printed(process: Process) -> AsyncIterator[tuple[Stream, bytes]]:
    """Yield the output of the process; its errors are the sandbox's."""
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
    """Return the agent's exit code; None if the host ended it.

    The host ends an agent that runs past its end, and any agent soon after the engine has failed: the rollout
    is lost, and the agent would only retry.

    Raises:
        NoLLMCall: The first call did not come in time.
    """
    if gate is None:
        return await _run(agent, ctx, sandbox, output, None)
    exit_code: int | None = None
    problem: Exception | None = None

    async def until_failed(scope: anyio.CancelScope) -> None:
        await gate.failed()
        await anyio.sleep(min(_FAREWELL, request.budget.grace))
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
                "it has not reached its first call, is configured to call another endpoint, or cannot reach "
                "this one from inside its sandbox"
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
            exit_code = await _run(agent, ctx, sandbox, output, gate)
        except Exception as error:  # the task group would wrap it
            problem = error
        group.cancel_scope.cancel()
    if problem is not None and gate.failure is None:  # which is what made the agent fail
        raise problem
    return exit_code


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
    """Return the user prompt for `task`: problem statement, repository, and success criterion."""
    return _TEMPLATE.format(workdir=task.workdir, problem_statement=task.problem_statement.strip())
