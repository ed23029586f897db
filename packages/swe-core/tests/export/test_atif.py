"""Trajectories, read back by the package `atif`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from atif import Trajectory

from swe_core.api.agent import AgentEvent
from swe_core.rollout.run_directory import RunDirectory

from ..hub.runs import add, error, rollout
from .conftest import Export


def trajectory(folder: Path, name: str) -> Trajectory:
    (file,) = folder.glob(f"*/{name}/agent/trajectory.json")
    return Trajectory.model_validate_json(file.read_text())


def test_trajectory_has_the_conversation_with_its_tokens(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0"))
    found = trajectory(exported(run, "atif"), "a-0")
    assert (found.schema_version, found.trajectory_id, found.agent.name) == ("ATIF-v1.8", "a-0", "mini")
    asked, called, last = found.steps
    assert (asked.source, asked.message) == ("user", "look")
    assert called.tool_calls is not None
    assert (called.tool_calls[0].function_name, called.tool_calls[0].arguments) == ("bash", {"command": "ls"})
    assert called.observation is not None
    assert [(one.source_call_id, one.content) for one in called.observation.results] == [("c1", "a.py")]
    assert called.metrics is not None
    assert (called.metrics.completion_token_ids, called.metrics.logprobs) == ([4, 5], [-0.5, -0.5])
    assert last.metrics is not None
    assert (last.message, last.metrics.completion_token_ids) == ("Done.", [7, 8, 9])
    assert found.final_metrics is not None
    assert (found.final_metrics.total_prompt_tokens, found.final_metrics.total_steps) == (7, 3)


def test_other_conversations_are_those_of_sub_agents(training: RunDirectory, exported: Export) -> None:
    found = trajectory(exported(training, "atif"), "moto-7365-g0-0")
    assert found.subagent_trajectories is not None
    (before,) = found.subagent_trajectories
    assert before.trajectory_id == "moto-7365-g0-0/1"
    assert str(before.steps[1].message).startswith("Fix moto-7365")
    assert str(found.steps[1].message).startswith("Summary so far")


def test_black_box_rollout_has_its_transcript(run: RunDirectory, exported: Export) -> None:
    folder = run.folder("a-0")
    for kind, text, tool in (
        ("text", "I look.", None), ("tool_call", '{"command": "ls"}', "bash"),
        ("tool_result", "a.py", "bash"), ("tool_result", "unasked", "read"), ("info", "ended", None),
        ("tool_result", "late", None),
    ):  # fmt: skip
        folder.add_event(AgentEvent(kind=kind, text=text, tool=tool))
    folder.close()
    run.append(rollout("a-0"))
    found = trajectory(exported(run, "atif"), "a-0")
    expected = [("agent", "I look."), ("agent", ""), ("system", "ended"), ("user", "late")]
    assert [(step.source, step.message) for step in found.steps] == expected
    assert found.steps[1].observation is not None
    assert [one.content for one in found.steps[1].observation.results] == ["a.py", "unasked"]
    assert found.steps[0].metrics is None


def test_arguments_that_are_no_object_are_kept_as_text(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0"))
    path = run.path / "rollouts" / "a-0" / "turns.jsonl"
    path.write_bytes(path.read_bytes().replace(rb"{\"command\":\"ls\"}", b"ls"))
    step = trajectory(exported(run, "atif"), "a-0").steps[1]
    assert step.tool_calls is not None
    assert (step.tool_calls[0].arguments, step.tool_calls[0].extra) == ({}, {"arguments": "ls"})


def test_rollout_with_a_secret_has_no_ids(
    run: RunDirectory, exported: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_SECRET", "ssh-secret-of-the-user")
    add(run, rollout("a-0"), text="the key is ssh-secret-of-the-user", patch=b"+ssh-secret-of-the-user\n")
    folder = exported(run, "atif")
    found = trajectory(folder, "a-0")
    assert found.steps[0].message == "the key is [redacted]"
    assert found.steps[1].metrics is not None
    assert found.steps[1].metrics.completion_token_ids is None
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"ssh-secret" in path.read_bytes()] == []


def test_folders_are_those_of_a_job_of_harbor(run: RunDirectory, exported: Export) -> None:
    add(run, rollout("a-0", phases={"open": 1.0, "agent": 5.0, "grade": 2.0}))
    add(run, rollout("a-1", outcome="unresolved", reward=0.0), patch=None)
    (run.path / "rollouts" / "a-1" / "test.log").write_text("1 failed\n")
    run.folder("b-0").close()
    run.append(error("b-0", "no memory"))
    add(run, rollout("b-1", outcome="cancelled", cancelled_as="stale", reward=None, grade=None))
    folder = exported(run, "atif")
    (job,) = (path for path in folder.iterdir() if path.is_dir())
    results = {file.parent.name: json.loads(file.read_text()) for file in job.glob("*/result.json")}
    good, failed = results["a-0"], results["b-0"]
    assert good["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert good["environment_setup"]["finished_at"] == good["agent_execution"]["started_at"]
    assert (job / "a-0" / "artifacts" / "patch.diff").read_text() == "diff\n"
    assert json.loads((job / "a-1" / "verifier" / "reward.json").read_text()) == {"reward": 0.0}
    assert (job / "a-1" / "verifier" / "test-stdout.txt").read_text() == "1 failed\n"
    assert failed["exception_info"]["exception_message"] == "sandbox: no memory"
    assert not (job / "b-0" / "agent" / "trajectory.json").exists()
    assert results["b-1"]["exception_info"]["exception_type"] == "CancelledError"
    whole = json.loads((job / "result.json").read_text())
    assert (whole["n_total_trials"], whole["stats"]["n_errored_trials"]) == (4, 1)
    assert whole["stats"]["evals"]["mini__owner/model__demo"]["metrics"] == [{"mean": 0.5}]
