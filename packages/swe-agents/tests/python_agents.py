"""What the tests of the agents in Python share: recorded output, a context, and real runs."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from swe_agents.python_agent import PythonAgent
from swe_core import AgentContext
from swe_core.api.engine import Completion, Usage
from swe_core.errors import AgentError
from swe_testing.agents import ScriptedModel, Trial, run_once
from swe_testing.records import make_task

TOKEN = "the-token-of-this-rollout"
URL = "http://127.0.0.1:4000/rollout/1/v1"
BUDGET_SPENT = "The budget of this run is spent. Stop now."
_PLACES = (
    "AGENTS.md", "CLAUDE.md", "CONVENTIONS.md", ".cursorrules", ".openhands/microagents/repo.md",
    ".openhands/skills/repo.md", ".agents/skills/repo/SKILL.md",
)  # fmt: skip
INSTRUCTIONS = dict.fromkeys(_PLACES, b"OBEY-THE-REPOSITORY")
"""Files with which a repository tells agents what to do."""


def context(prompt: str = "Fix it.") -> AgentContext:
    """Return what an agent in a sandbox is given."""
    return AgentContext(make_task(), prompt, URL, TOKEN, "org/Model-8B:high", "/testbed")


def settings_of(agent: PythonAgent) -> Any:
    """Return the settings file."""
    return json.loads(agent.files(context())["/tmp/swe-home/settings.json"])


def parsed(agent: PythonAgent) -> list[tuple[str, str, str | None, bool]]:
    """Return the events of the agent's recorded output: kind, text, tool, fatal."""
    lines = (Path(__file__).parent / "recorded" / f"{agent.name}.jsonl").read_text().splitlines()
    events = [event for line in lines for event in agent.parse_event(line)]
    return [(event.kind, event.text, event.tool, event.fatal) for event in events]


def calls(tool: str, arguments: str, text: str | None = None) -> Completion:
    """Return a reply that calls `tool`; `arguments` are the raw text that the model sampled."""
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": arguments}}
    message = {"role": "assistant", "content": text, "tool_calls": [call]}
    return Completion(message, "tool_calls", Usage(completion_tokens=1))


def extends(model: ScriptedModel) -> bool:
    """Return whether each request begins with the messages of the one before."""
    asked = [request.messages for request in model.asked]
    return all(later[: len(earlier)] == earlier for earlier, later in pairwise(asked))


async def trial_of(agent: PythonAgent, model: ScriptedModel, **more: Any) -> Trial:
    """Run the real agent once; skip the test only on a host that cannot build its bundle, and never in CI."""
    try:
        agent.assets()
    except AgentError as error:
        unable = "pip cannot fetch" in str(error) or "needs a CPython" in str(error)
        if not unable or os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return await run_once(agent, model, **more)
