"""What the tests of agents share: a context, recorded output, and real runs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from swe_core import AgentContext, AgentEvent, AgentSpec, Completion
from swe_core.api.engine import Usage
from swe_core.api.sandbox import Sandbox
from swe_core.errors import AgentError
from swe_testing.agents import ScriptedModel, Trial, run_once
from swe_testing.records import make_task

TOKEN = "the-token-of-this-rollout"


def context(prompt: str = "Fix it.") -> AgentContext:
    """Return what an agent in a sandbox is given."""
    url = "http://127.0.0.1:4000/rollout/1/v1"
    return AgentContext(make_task(), prompt, url, TOKEN, "org/Model-8B:high", "/testbed")


def parsed(agent: AgentSpec) -> list[AgentEvent]:
    """Return the events of the agent's recorded output."""
    lines = (Path(__file__).parent / "recorded" / f"{agent.name}.jsonl").read_text().splitlines()
    return [event for line in lines for event in agent.parse_event(line)]


def calls(tool: str, arguments: str) -> Completion:
    """Return a reply that calls `tool`; `arguments` are the raw text that the model sampled."""
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return Completion(message, "tool_calls", Usage(completion_tokens=1))


def reader(*names: str) -> tuple[list[bytes], Callable[[Sandbox], Awaitable[None]]]:
    """Return a list, and what to do after a trial to put the content of these files into it."""
    found: list[bytes] = []

    async def after(sandbox: Sandbox) -> None:
        found.append((await sandbox.exec(["cat", *names])).stdout)

    return found, after


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
