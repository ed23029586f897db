"""Every agent solves a demo task with a model that is a script, and each sampled token is accounted for.

The slow tests write docs/agents.md.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from swe_core.api.task import Task
from swe_core.rollout.run_directory import RunDirectory

from .agent_matrix import AGENTS, Row, page, policy, row
from .conftest import TASK, Scripted, SweCore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.pi,
    pytest.mark.usefixtures("local_sandbox"),
    pytest.mark.skipif(find_spec("swe_agents") is None, reason="swe-agents is not installed"),
]
PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
FAST = ("codex", "claude-code", "gemini-cli")
"""One agent for each dialect beside chat completions, which the tests of Pi cover."""
FORKS = {"aider": {"rewritten": 1}}
"""Agents whose conversation is no single row."""
CONTEXT = 1_000_000
Solve = Callable[[str], Awaitable[Row]]


@pytest.fixture
def solve(swe_core: SweCore, scripted: Scripted, tokenizer: PreTrainedTokenizerBase, task: Task) -> Solve:
    """Run one agent on the demo task, check its tokens, and return its row."""

    async def run(agent: str) -> Row:
        async with scripted([policy(tokenizer, agent, task)], max_model_len=CONTEXT) as vllm:
            args = ["--plugins", agent, "--task", TASK, "--engine", "vllm", "--engine-url", vllm.url]
            args += ["--model", "scripted", *(part for one in AGENTS[agent] for part in ("--set", one))]
            done = await anyio.to_thread.run_sync(lambda: swe_core(*args))
            sampled = sum(len(asked.sent) for asked in vllm.requests)
        assert done.code == 0, done.stderr
        assert done.only["outcome"] == "resolved", json.dumps(done.only, indent=2)
        ledger = done.report()["ledger"]
        assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
        found = row(RunDirectory.open(done.out))
        assert found.sampled == sampled == found.trained + sum(found.dropped.values())
        assert found.forks == FORKS.get(agent, {})
        assert found.chains == 1 + sum(found.forks.values())
        return found

    return run


@pytest.mark.parametrize("agent", FAST)
async def test_agent_of_each_dialect_solves_a_task_in_one_row(agent: str, solve: Solve) -> None:
    found = await solve(agent)
    assert (found.dropped, found.auxiliary) == ({}, {})


@pytest.mark.slow
async def test_every_agent_solves_a_task_and_has_a_row_in_the_docs(solve: Solve) -> None:
    PAGE.write_text(page([await solve(agent) for agent in AGENTS]))
