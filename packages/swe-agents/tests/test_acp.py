"""The Agent Client Protocol: permissions, turns, cancel, resume; with a small agent and with real ones."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from swe_agents.acp import AGENTS, AcpAgent, AcpConfig
from swe_core.api.agent import AgentContext
from swe_core.api.limits import Budgets
from swe_core.errors import AgentError, ConfigError
from swe_testing.agents import Run, Scripted, ScriptedModel, Trial, run_once
from swe_testing.records import make_task

from .trials import reader

pytestmark = pytest.mark.usefixtures("local_sandbox")
PROGRAM = Path(__file__).with_name("acp_program.py").read_text()


class Small(AcpAgent):
    """The small agent, in one of its modes."""

    def __init__(self, mode: str = "", **config: Any) -> None:
        env = {"LLM": "{base_url}", "LLM_KEY": "{api_key}", "MODE": mode, "STATE": "{home}/state"}
        super().__init__(AcpConfig(command="python3 -I {home}/agent.py", env=env, **config))

    def files(self, ctx: AgentContext) -> dict[str, bytes]:
        return {f"{ctx.home}/agent.py": PROGRAM.encode()}

    def command(self, ctx: AgentContext) -> list[str]:
        return [part.replace("{home}", ctx.home) for part in super().command(ctx)]


async def run(agent: AcpAgent, *script: Scripted, **more: Any) -> Trial:
    return await run_once(agent, ScriptedModel(*script), **more)


@pytest.mark.slow
async def test_acp_takes_turns_and_joins_the_pieces_of_a_text() -> None:
    trial = await run(Small(follow_ups=("And now?",)), "first", "second")
    assert trial.failure is None
    assert trial.texts("text") == ["first", "second"]
    assert [turn.messages[0]["content"] for turn in trial.turns][1] == "And now?"
    assert "a line that is no message" in trial.log


@pytest.mark.parametrize(("policy", "chosen"), [("allow", "once"), ("reject", "never")])
async def test_acp_answers_permission_requests_by_policy(policy: str, chosen: str) -> None:
    made, after = reader("made.txt")
    trial = await run(Small("asks", permissions=policy), "I write.", after=after)
    assert trial.failure is None
    assert made == [b"once" if policy == "allow" else b""]
    assert [(event.kind, event.text, event.tool) for event in trial.events] == [
        ("text", "I write.", None),
        ("tool_call", '{"path": "made.txt"}', "write"),
        ("tool_result", chosen, "write"),
    ]


@pytest.mark.parametrize("mode", ["exits", "exits-forgets", "exits-loses"])
async def test_acp_resumes_an_agent_that_exits_or_begins_anew(mode: str) -> None:
    """Anew where it has lost the session. What a session tells again is no new event."""
    trial = await run(Small(mode, follow_ups=("And now?",)), "lost", "first", "second")
    assert trial.failure is None
    assert trial.texts("text") == ["first", "second"]
    said = "interrupted" if mode == "exits" else "Create the file made.txt."
    assert said in trial.turns[1].messages[0]["content"]


FAILS = {"always-exits": "exited in the middle of its work", "refuses": "refused to go on"}
FAILS |= {"newer": "speaks version 99", "locked": "Authentication required"}


@pytest.mark.parametrize(("mode", "said"), FAILS.items())
async def test_acp_agent_that_fails_is_an_error(mode: str, said: str) -> None:
    trial = await run(Small(mode), "text")
    assert isinstance(trial.failure, AgentError)
    assert said in str(trial.failure)


async def test_acp_cancels_the_turn_once_a_budget_is_spent() -> None:
    trial = await run(Small("hangs"), "text", budget=Budgets(wall=1.0, grace=60))
    assert (trial.failure, trial.ended_by, trial.exit_code) == (None, "wall", 0)


def test_acp_rejects_a_wrong_config() -> None:
    for agent, command, said in (
        (None, None, "set one of agent.acp.agent and agent.acp.command"),
        ("opencode", "x", "set one of"),
        ("emacs", None, "agent.acp.agent is 'emacs'; set it to one of opencode"),
    ):
        with pytest.raises(ConfigError, match=said):
            AcpAgent(AcpConfig(agent=agent, command=command))


def test_acp_fills_in_the_endpoint() -> None:
    ctx = AgentContext(make_task(), "p", "http://127.0.0.1:1/r/v1", "key", "m", "/testbed")
    config = AcpConfig(command="agent --acp", env={"URL": "{root_url}/x", "KEY": "{api_key}", "JSON": "{}"})
    assert AcpAgent(config).env(ctx) == {"URL": "http://127.0.0.1:1/r/x", "KEY": "key", "JSON": "{}"}
    assert AcpAgent(config).command(ctx) == ["agent", "--acp"]


KILL = """
import contextlib, os, pathlib, signal
for one in pathlib.Path("/proc").glob("[0-9]*/exe"):
    with contextlib.suppress(OSError):
        if os.readlink(one).startswith("/opt/swe/"):
            os.kill(int(one.parent.name), signal.SIGKILL)
"""
MARKS = {agent: pytest.mark.slow if agent == "gemini-cli" else pytest.mark.long for agent in AGENTS}
REAL = pytest.mark.parametrize("agent", [pytest.param(agent, marks=MARKS[agent]) for agent in AGENTS])


@REAL
async def test_acp_drives_a_real_agent_for_two_turns(agent: str) -> None:
    made, after = reader("one.txt", "two.txt")
    script = (Run("echo one > one.txt"), "First.", Run("echo two > two.txt"), "Second.")
    trial = await run(AcpAgent(AcpConfig(agent=agent, follow_ups=("And two.txt.",))), *script, after=after)
    assert trial.failure is None, trial.log
    assert made == [b"one\ntwo\n"]
    assert trial.texts("text") == ["First.", "Second."]
    assert len(trial.texts("tool_call")) == len(trial.texts("tool_result")) == 2
    work = [turn for turn in trial.turns if turn.auxiliary is None]
    assert len(work) == 4
    assert all(turn.kept for turn in work[1:]), "each call continues the one before"


@REAL
async def test_acp_resumes_a_real_agent_that_was_killed(agent: str) -> None:
    trial = await run(AcpAgent(AcpConfig(agent=agent)), Run(f"python3 -c {shlex.quote(KILL)}"), "Resumed.")
    assert trial.failure is None, trial.log
    assert trial.texts("text")[-1] == "Resumed."
    work = [turn for turn in trial.turns if turn.auxiliary is None]
    assert len(work) >= 2
    # The session goes on, or begins anew where the agent had not written it yet.
    assert work[-1].messages == [] or "interrupted" in str(work[-1].messages)


@REAL
async def test_acp_cancels_a_real_agent_whose_time_is_spent(agent: str) -> None:
    real, budget = AcpAgent(AcpConfig(agent=agent)), Budgets(wall=12.0, grace=60)
    trial = await run(real, Run("tail -f /dev/null"), budget=budget)
    assert (trial.failure, trial.ended_by, trial.exit_code) == (None, "wall", 0)
