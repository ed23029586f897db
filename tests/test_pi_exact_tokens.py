"""The whole program with real Pi and the engine `vllm`: no sampled token is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from swe_core.api.chain import Chain
from swe_core.api.task import Task
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.chains import chains_of
from swe_testing.serving.start import TokenServer
from swe_testing.vllm import tool_call

from .conftest import TASK, Done, Scripted, SweCore, fix, reported
from .engines import ObservingProxy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = [pytest.mark.engine, pytest.mark.pi]
COMPACTS = "You are a context summarization assistant"
"""How Pi's request for a summary begins."""


async def run_pi(swe_core: SweCore, sandbox: str, url: str, model: str, *args: str) -> Done:
    engine = ["--engine", "vllm", "--engine-url", url, "--model", model]
    command = partial(swe_core, "--plugins", f"pi,{sandbox}", "--task", TASK, *engine, *args)
    return await anyio.to_thread.run_sync(command)


def rows(done: Done) -> list[Chain]:
    run = RunDirectory.open(done.out)
    return [chain for rollout in run.rollouts() for chain in chains_of(run.turns(rollout.id))]


async def test_pi_fixes_a_bug_in_one_row(
    swe_core: SweCore, sandbox: str, scripted: Scripted, tokenizer: PreTrainedTokenizerBase, task: Task
) -> None:
    """The policy is a script: it looks, applies the gold patch, and submits. Pi's prompt, which it sends as a
    list of parts, is in the row."""
    replies = [
        "A look first." + tool_call("bash", command="git log --oneline; ls"),
        tool_call("bash", command=fix(task)),
        tool_call("answer", text="fixed"),
    ]
    async with scripted(replies) as vllm:
        done = await run_pi(swe_core, sandbox, vllm.url, "scripted")
        sampled = [asked.sent for asked in vllm.requests]
    assert done.code == 0, done.stderr
    assert (done.only["outcome"], done.only["turns"]) == ("resolved", 3), done.only
    (row,) = rows(done)
    assert row.input_ids[row.completion_mask].tolist() == [one for ids in sampled for one in ids]
    ledger = done.report()["ledger"]
    assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
    assert ledger["sampled"] == ledger["trainable"] == sum(map(len, sampled))
    assert ledger["rendered"] == {"full": 1, "bridge": 2}
    said = tokenizer.decode(row.input_ids)
    for line in filter(None, map(str.strip, task.problem_statement.splitlines())):
        assert line in said


def compacting(tokenizer: PreTrainedTokenizerBase, calls: int) -> Callable[[Sequence[int]], list[int]]:
    """A policy that runs `calls` commands which print much, then submits; and sums up when it is asked to."""
    commands = iter([tool_call("bash", command=f"echo {n}; yes word | head -n 600") for n in range(calls)])

    def reply(prompt: Sequence[int]) -> list[int]:
        if COMPACTS in tokenizer.decode(prompt):
            text = "What was done so far: commands were run."
        else:
            text = next(commands, tool_call("answer", text="done"))
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    return reply


@pytest.mark.slow
@pytest.mark.usefixtures("local_sandbox")
async def test_pi_that_compacts_k_times_gives_1_and_2k_rows(
    swe_core: SweCore, scripted: Scripted, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The summary is a row of its own, and what follows it another one."""
    compaction = {"enabled": True, "reserveTokens": 1000, "keepRecentTokens": 600}
    async with scripted([compacting(tokenizer, calls=8)]) as vllm:
        done = await run_pi(
            swe_core, "local", vllm.url, "scripted",
            "--set", "agent.pi.context_window=9000", "--set", "agent.pi.max_tokens=500",
            "--set", f"agent.pi.settings={json.dumps({'compaction': compaction})}",
        )  # fmt: skip
        prompts = [tokenizer.decode(asked.prompt) for asked in vllm.requests]
        sampled = [asked.sent for asked in vllm.requests]
    assert done.only["outcome"] == "unresolved", done.only
    compactions = sum(COMPACTS in prompt for prompt in prompts)
    assert compactions >= 2
    chains, run = rows(done), RunDirectory.open(done.out)
    assert len(chains) == 1 + 2 * compactions
    trained = [chain.input_ids[chain.completion_mask].tolist() for chain in chains]
    assert sorted(one for ids in trained for one in ids) == sorted(one for ids in sampled for one in ids)
    ledger = done.report()["ledger"]
    assert ledger["sampled"] == ledger["trainable"] == sum(map(len, sampled))
    assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
    summaries = [turn for rollout in run.rollouts() for turn in run.turns(rollout.id) if turn.summary]
    assert len(summaries) == compactions
    assert ledger["summaries"] == sum(len(turn.tokens.completion) for turn in summaries if turn.tokens)
    assert (ledger["chains"], ledger["forks"]) == (len(chains), {"rewritten": compactions})


@pytest.mark.slow
async def test_pi_with_a_real_model_ends_with_every_sampled_token_accounted_for(
    swe_core: SweCore, sandbox: str, token_server: TokenServer
) -> None:
    """The command of the README, in both sandboxes."""
    model, cut = token_server.model, ["--set", "engine.vllm.max_tokens=64"]
    async with ObservingProxy(token_server.url) as proxy:
        done = await run_pi(swe_core, sandbox, proxy.url, model, "--attempts", "3", *cut)
    assert done.code == 0, done.stderr
    assert {rollout["outcome"] for rollout in done.rollouts} == {"unresolved"}, done.rollouts
    ledger = done.report()["ledger"]
    assert (ledger["balanced"], ledger["accounted_percent"]) == (True, 100)
    assert ledger["sampled"] == sum(len(call.ids) for call in proxy.sampled) > 0
    trained = sorted(tuple(row.input_ids[row.completion_mask]) for row in rows(done))
    assert trained == sorted(tuple(call.ids) for call in proxy.sampled)
    for printed in (done.stdout, reported(done.out)):
        assert "balanced, 100.0 % accounted for" in printed
