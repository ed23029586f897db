"""`swe-core export` of a run of real Pi with exact tokens: every format has what the run has."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from atif import Trajectory

from swe_core.api.task import Task
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.vllm import tool_call

from .conftest import TASK, Command, Scripted, SweCore, fix

pytestmark = [
    *(pytest.mark.engine, pytest.mark.pi, pytest.mark.slow),
    pytest.mark.usefixtures("local_sandbox"),
]


async def test_run_of_pi_is_the_same_in_every_format(
    tmp_path: Path, swe_core: SweCore, command: Command, scripted: Scripted, task: Task
) -> None:
    replies = [
        "A look first." + tool_call("bash", command="git log --oneline; ls"),
        tool_call("bash", command=fix(task)),
        tool_call("answer", text="fixed"),
    ]
    async with scripted(replies) as vllm:
        run = partial(swe_core, "--plugins", "pi,local", "--task", TASK, "--engine", "vllm")
        done = await anyio.to_thread.run_sync(partial(run, "--engine-url", vllm.url, "--model", "scripted"))
    assert done.only["outcome"] == "resolved", done.stderr
    run_directory = RunDirectory.open(done.out)
    turns, patch = run_directory.turns(done.only["id"]), run_directory.patch(done.only["id"])
    (chain,) = run_directory.chains(done.only["id"])
    assert patch is not None

    def exported(name: str) -> Path:
        out = tmp_path / name
        said = command("export", str(done.out), "--format", name, "--out", str(out))
        assert said.code == 0, said.stderr
        return out

    (row,) = map(json.loads, (exported("jsonl") / "train.jsonl").read_text().splitlines())
    assert row["input_ids"] == chain.input_ids.tolist()
    assert row["completion_mask"] == chain.completion_mask.tolist()
    assert (row["reward"], row["group"]) == (1.0, TASK)

    (conversation,) = map(json.loads, (exported("sft") / "train.jsonl").read_text().splitlines())
    spoken = [one for one in conversation["messages"] if one["role"] == "assistant"]
    assert [one["tool_calls"][0]["function"]["name"] for one in spoken] == ["bash", "bash", "answer"]
    assert {tool["function"]["name"] for tool in conversation["tools"]} >= {"bash", "answer"}

    (file,) = exported("atif").glob("*/*/agent/trajectory.json")
    steps = [one for one in Trajectory.model_validate_json(file.read_text()).steps if one.source == "agent"]
    assert [one.metrics and one.metrics.completion_token_ids for one in steps] == [
        turn.tokens and turn.tokens.completion for turn in turns
    ]
