"""Agents that the host talks to over their standard input and output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from swe_core.api.agent import AgentContext, AgentDialogue, AgentEvent, InteractiveAgent
from swe_core.api.limits import Budgets
from swe_core.api.sandbox import HOME_DIR, SandboxSpec, Stream
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import AgentError, SandboxBroken, SandboxDied
from swe_core.sandboxing.interactive import InteractiveProcess, interactive
from swe_testing.agents import ScriptedModel, run_once

pytestmark = pytest.mark.usefixtures("local_sandbox")
PROGRAM = """
import json, os, sys, urllib.request
def ask(text):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["KEY"]}
    request = urllib.request.Request(os.environ["URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
for line in sys.stdin:
    print(ask(line.strip()), flush=True)
"""


class Talker(InteractiveAgent):
    """Its program sends each line to the model. `said` is said to it, in as many starts."""

    name = "talker"

    def __init__(self, *said: Sequence[str], fails: str = "") -> None:
        self.said = said
        self.fails = fails
        self.heard: list[str] = []

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["python3", "-I", "-c", PROGRAM]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {"URL": ctx.base_url, "KEY": ctx.api_key}

    async def converse(self, ctx: AgentContext, dialogue: AgentDialogue) -> None:
        for turns in self.said:
            async with dialogue.start() as console:
                lines = console.lines()
                for text in turns:
                    await console.send(text.encode() + b"\n")
                    self.heard.append((await anext(lines, b"ended")).decode())
                    dialogue.record(AgentEvent(kind="text", text=self.heard[-1]))
        if self.fails:
            raise AgentError(self.fails)


async def test_dialogue_takes_turns_and_starts_again() -> None:
    said = ["one", "two", "x" * 300_000]  # more than a pipe holds
    agent = Talker(said[:2], said[2:])
    trial = await run_once(agent, ScriptedModel("1", "2", "3"))
    assert (trial.failure, trial.exit_code) == (None, 0)
    assert agent.heard == trial.texts("text") == ["1", "2", "3"]
    assert [turn.messages[0]["content"] for turn in trial.turns] == said
    assert "1\n2\n3\n" in trial.log


async def test_dialogue_that_fails_is_an_error_of_the_agent_unless_a_budget_is_spent() -> None:
    trial = await run_once(Talker(["one"], fails="it refuses"), ScriptedModel())
    assert isinstance(trial.failure, AgentError)
    assert "it refuses" in str(trial.failure)
    agent = Talker(["one", "two"], fails="it was stopped")
    trial = await run_once(agent, ScriptedModel("1"), budget=Budgets(turns=1))
    assert (trial.failure, trial.ended_by) == (None, "turns")


class Listening(Talker):
    """Hears the lines of its program to their end."""

    program = ("no-such-agent", "--acp")

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return self.program

    async def converse(self, ctx: AgentContext, dialogue: AgentDialogue) -> None:
        async with dialogue.start() as console:
            if self.said:
                await console.send(b"hello\n")
            self.heard = [line.decode() async for line in console.lines()]
            if not self.said:
                raise AgentError("it ended without an answer")


async def test_missing_program_of_a_dialogue_is_named() -> None:
    trial = await run_once(Listening(), ScriptedModel())
    assert isinstance(trial.failure, AgentError)
    said = "the agent 'talker' cannot start, because its program 'no-such-agent' is missing in the sandbox: "
    assert str(trial.failure).startswith(said)


async def test_input_that_code_inside_removed_breaks_the_sandbox() -> None:
    async with LocalProvider().open(SandboxSpec()) as sandbox:
        async with interactive(sandbox, ["sleep", "60"], cwd="/", env={}, directory=HOME_DIR) as process:
            await sandbox.exec(["rm", "-rf", HOME_DIR])
            with pytest.raises(SandboxBroken, match="cannot be written"):
                await process.send(b"hello")


async def test_dialogue_with_an_ended_process_ends_its_lines() -> None:
    agent = Listening(["one"])
    agent.program = ("sh", "-c", "read line; echo bye")
    trial = await run_once(agent, ScriptedModel())
    assert agent.heard == ["bye"]
    assert "made no LLM call" in str(trial.failure)


async def test_dialogue_whose_sandbox_dies_is_an_error_of_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dying(process: InteractiveProcess) -> AsyncIterator[tuple[Stream, bytes]]:
        yield "stdout", b"a line\n"
        raise SandboxDied("the sandbox is gone")

    monkeypatch.setattr(InteractiveProcess, "output", dying)
    agent = Listening()
    agent.program = ("sh", "-c", "true")
    trial = await run_once(agent, ScriptedModel())
    assert isinstance(trial.failure, SandboxDied)
    assert "a line" in trial.log
