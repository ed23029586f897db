"""What the tests of the agents in JavaScript share: recorded output, a context, and real runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swe_agents.node_agent import NodeAgent
from swe_core import AgentContext, AgentEvent
from swe_core.errors import AgentError
from swe_testing.agents import ScriptedModel, Trial, run_once
from swe_testing.records import make_task

TOKEN = "the-token-of-this-rollout"


def context(prompt: str = "Fix it.") -> AgentContext:
    """Return what an agent in a sandbox is given."""
    url = "http://127.0.0.1:4000/rollout/1/v1"
    return AgentContext(make_task(), prompt, url, TOKEN, "org/Model-8B:high", "/testbed")


def parsed(agent: NodeAgent) -> list[tuple[str, str, str | None, bool]]:
    """Return the events of the agent's recorded output: kind, text, tool, fatal."""
    lines = (Path(__file__).parent / "recorded" / f"{agent.name}.jsonl").read_text().splitlines()
    events = [event for line in lines for event in agent.parse_event(line)]
    return [(event.kind, event.text, event.tool, event.fatal) for event in events]


def odd_lines(agent: NodeAgent) -> list[AgentEvent]:
    """Return the events of lines that no agent should print."""
    lines = (
        "",
        "  ",
        "no JSON",
        "[1]",
        "{}",
        '{"type": 1}',
        '{"role": []}',
        '{"type": "message"}',
        "[" * 10**5,
    )
    return [event for line in lines for event in agent.parse_event(line)]


async def trial_of(agent: NodeAgent, model: ScriptedModel, **more: Any) -> Trial:
    """Run the real agent once; skip the test only where no registry can be reached, and never in CI."""
    try:
        agent.assets()
    except AgentError as error:
        if "npm cannot fetch" not in str(error) or os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return await run_once(agent, model, **more)
