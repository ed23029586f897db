"""Every agent solves a demo task with a model that is a script, and each sampled token is accounted for.

A long test compares docs/agents.md with what they do, and writes the page where `SWE_WRITE_DOCS` is set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from swe_core.api.task import Task
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.serving.start import TokenServer

from .agent_matrix import AGENTS, SETUP, Row, page, policy, row
from .conftest import TASK, Scripted, SweCore
from .engines import ObservingProxy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = [
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
_SIZES = re.compile(r"(?<=` )\| \d+\.\d\d \| \d+ \|")
"""Seconds to the first call, and megabytes of a bundle: those of one machine."""
Solve = Callable[[str], Awaitable[Row]]


@pytest.fixture
def solve(
    swe_core: SweCore, scripted: Scripted, tokenizer: PreTrainedTokenizerBase, task: Task, tmp_path: Path
) -> Solve:
    """Run one agent on the demo task, check its tokens, and return its row.

    The model solves it only if each kind of shell has the variables of the set-up lines.
    """
    columns = {
        "instance_id": task.instance_id, "repo": task.repo, "base_commit": task.base_commit,
        "problem_statement": task.problem_statement, "patch": task.patch, "test_patch": task.test_patch,
        "FAIL_TO_PASS": task.fail_to_pass, "PASS_TO_PASS": task.pass_to_pass, "setup": SETUP,
        "repository": str(task.repository), "test_command": task.test_command,
    }  # fmt: skip
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(columns))

    async def run(agent: str) -> Row:
        async with scripted([policy(tokenizer, agent, task)], max_model_len=CONTEXT) as vllm:
            args = ["--plugins", agent, "--tasks", str(rows), "--engine", "vllm", "--engine-url", vllm.url]
            args += ["--model", "scripted", *(part for one in AGENTS[agent] for part in ("--set", one))]
            done = await anyio.to_thread.run_sync(lambda: swe_core(*args))
            sampled = sum(len(asked.sent) for asked in vllm.requests)
        assert done.code == 0, done.stderr
        assert done.only["outcome"] == "resolved", json.dumps(done.only, indent=2)
        ledger = done.report()["ledger"]
        assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
        found = row(RunDirectory.open(done.out))
        assert found.sampled == sampled == found.trainable + sum(found.dropped.values())
        assert found.forks == FORKS.get(agent, {})
        assert found.chains == 1 + sum(found.forks.values())
        return found

    return run


@pytest.mark.parametrize("agent", FAST)
@pytest.mark.slow
async def test_agent_of_each_dialect_solves_a_task_in_one_row(agent: str, solve: Solve) -> None:
    found = await solve(agent)
    assert (found.dropped, found.auxiliary) == ({}, {})


@pytest.mark.long
async def test_every_agent_solves_a_task_as_the_docs_say(solve: Solve) -> None:
    found = page([await solve(agent) for agent in AGENTS])
    agents, heading, models = PAGE.read_text().partition("\n## Models\n")
    if "SWE_WRITE_DOCS" in os.environ:
        PAGE.write_text(found + heading + models)
        agents = found
    assert _SIZES.sub("", agents) == _SIZES.sub("", found)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("agent", FAST)
async def test_agent_with_a_real_model_accounts_for_every_sampled_token(
    agent: str, swe_core: SweCore, token_server: TokenServer
) -> None:
    """The untrained model writes noise, upon which each agent ends, or goes on until its budget is spent."""
    async with ObservingProxy(token_server.url) as proxy:
        args = ["--plugins", agent, "--task", TASK, "--engine", "vllm", "--engine-url", proxy.url]
        args += ["--model", token_server.model, "--set", "engine.vllm.max_tokens=48", "--attempts", "2"]
        args += ["--set", "budget.turns=3", *(part for one in AGENTS[agent] for part in ("--set", one))]
        done = await anyio.to_thread.run_sync(lambda: swe_core(*args))
    assert done.code == 0, done.stderr
    assert {rollout["outcome"] for rollout in done.rollouts} == {"unresolved"}, done.rollouts
    ledger = done.report()["ledger"]
    assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
    assert ledger["sampled"] == sum(len(call.ids) for call in proxy.sampled) > 0
    run = RunDirectory.open(done.out)
    chains = [chain for rollout in run.rollouts() for chain in run.chains(rollout.id)]
    trained = [tuple(chain.input_ids[chain.completion_mask]) for chain in chains]
    sampled = sorted(one for call in proxy.sampled for one in call.ids)
    assert sorted(one for ids in trained for one in ids) == sampled
