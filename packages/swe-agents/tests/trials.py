"""What the tests of agents share: a context, recorded output, and real runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from swe_core import AgentContext, AgentEvent, AgentSpec
from swe_core.errors import AgentError
from swe_testing.agents import ScriptedModel, Trial, run_once
from swe_testing.records import make_task

TOKEN = "the-token-of-this-rollout"
_ODD = (
    "", "  ", "no JSON", "[1]", "{}", '{"type": 1}', '{"role": []}', '{"type": ["message"]}', "[" * 10**5,
)  # fmt: skip


def context(prompt: str = "Fix it.") -> AgentContext:
    """Return what an agent in a sandbox is given."""
    url = "http://127.0.0.1:4000/rollout/1/v1"
    return AgentContext(make_task(), prompt, url, TOKEN, "org/Model-8B:high", "/testbed")


def parsed(agent: AgentSpec) -> list[tuple[str, str, str | None, bool]]:
    """Return the events of the agent's recorded output: kind, text, tool, fatal."""
    lines = (Path(__file__).parent / "recorded" / f"{agent.name}.jsonl").read_text().splitlines()
    events = [event for line in lines for event in agent.parse_event(line)]
    return [(event.kind, event.text, event.tool, event.fatal) for event in events]


def odd_lines(agent: AgentSpec) -> list[AgentEvent]:
    """Return the events of lines that no agent should print."""
    return [event for line in _ODD for event in agent.parse_event(line)]


def contexts_of(kinds: Iterable[type[AgentSpec]], monkeypatch: pytest.MonkeyPatch) -> list[AgentContext]:
    """Return the list of the contexts that agents of these kinds are given from now on."""
    contexts: list[AgentContext] = []
    for kind in kinds:
        env = kind.env

        def spy(self: Any, ctx: AgentContext, env: Any = env) -> Any:
            contexts.append(ctx)
            return env(self, ctx)

        monkeypatch.setattr(kind, "env", spy)
    return contexts


async def trial_of(agent: AgentSpec, model: ScriptedModel, **more: Any) -> Trial:
    """Run the real agent once; skip the test only where its bundle cannot be had, and never in CI."""
    try:
        agent.assets()
    except AgentError as error:
        missing = any(why in str(error) for why in ("cannot fetch", "needs a CPython"))
        if not missing or os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return await run_once(agent, model, **more)
