"""Dialogue: the host's conversation with an agent over its standard input and output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from swe_core.api import agent_contract
from swe_core.api.agent import AgentConsole, AgentContext, AgentEvent, InteractiveAgent
from swe_core.api.sandbox import Sandbox
from swe_core.errors import AgentError, SandboxError, raised_as, sentence
from swe_core.interception.gate import Gate
from swe_core.rollout.agent_output import MAX_LINE, AgentOutput
from swe_core.rollout.missing_program import missing_program
from swe_core.sandboxing.background import helper_task_group
from swe_core.sandboxing.interactive import InteractiveProcess, interactive

_LINES = 64
"""Lines that wait for the agent's plugin; more wait in the sandbox."""


async def converse(agent: InteractiveAgent, ctx: AgentContext, dialogue: Dialogue) -> int:
    """Take the agent from its start to its end. Return 0, or 1 if it failed: the transcript says why."""
    try:
        await agent.converse(ctx, dialogue)
    except AgentError as error:
        dialogue.record(AgentEvent(kind="error", text=sentence(error), fatal=True))
        return 1
    return 0


class Dialogue:
    """Starts the agent's command, and keeps what it prints. See `AgentDialogue`."""

    def __init__(
        self,
        agent: InteractiveAgent,
        ctx: AgentContext,
        sandbox: Sandbox,
        output: AgentOutput,
        gate: Gate | None,
    ) -> None:
        self._agent = agent
        self._ctx = ctx
        self.sandbox = sandbox
        self._output = output
        self._gate = gate

    @asynccontextmanager
    async def start(self) -> AsyncIterator[AgentConsole]:
        """See `AgentDialogue.start`.

        Raises:
            SandboxError: The sandbox failed.
        """
        agent, ctx = self._agent, self._ctx
        if self._gate is not None:
            self._gate.start_again()
        lines, received = anyio.create_memory_object_stream[bytes](_LINES)
        command, env = agent_contract.command(agent, ctx), agent_contract.env(agent, ctx)
        with raised_as(SandboxError):
            context = interactive(self.sandbox, command, cwd=ctx.workdir, env=env, directory=ctx.home)
        async with context as process, helper_task_group() as tasks:
            console = _Console(process, received)
            tasks.start_soon(self._read, process, console, lines)
            try:
                yield console
            except AgentError:
                if console.died is not None:  # which is why the agent failed
                    raise console.died from None
                if self._gate is not None and self._gate.finish_reason is not None:  # so it has started
                    raise
                missing = await missing_program(
                    agent.name, command[0], self.sandbox, cwd=ctx.workdir, env=env
                )
                if missing is not None:
                    raise AgentError(missing) from None
                raise

    def record(self, event: AgentEvent) -> None:
        """See `AgentDialogue.record`."""
        self._output.add(event)

    async def over(self) -> None:
        """See `AgentDialogue.over`."""
        if self._gate is None:
            await anyio.sleep_forever()
        else:
            await self._gate.ending()

    async def _read(
        self, process: InteractiveProcess, console: _Console, lines: MemoryObjectSendStream[bytes]
    ) -> None:
        """Log the output, and pass on its lines; a line that is too long is left out."""
        async with lines:
            try:
                await self._pass_on(process, lines)
            except SandboxError as error:
                console.died = error

    async def _pass_on(self, process: InteractiveProcess, lines: MemoryObjectSendStream[bytes]) -> None:
        rest, too_long = b"", False
        with raised_as(SandboxError):
            async for stream, chunk in process.output():
                self._output.feed(stream, chunk)
                if stream == "stderr":
                    continue
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    if not too_long:
                        await lines.send(line)
                    too_long = False
                if len(rest) > MAX_LINE:
                    rest, too_long = b"", True


class _Console:
    """See `AgentConsole`.

    Attributes:
        died: Why the process cannot be read any more, if its sandbox failed.
    """

    def __init__(self, process: InteractiveProcess, received: MemoryObjectReceiveStream[bytes]) -> None:
        self.died: SandboxError | None = None
        self._process = process
        self._received = received

    async def lines(self) -> AsyncIterator[bytes]:
        async with self._received:
            async for line in self._received:
                yield line

    async def send(self, data: bytes) -> None:
        with raised_as(SandboxError):
            await self._process.send(data)
