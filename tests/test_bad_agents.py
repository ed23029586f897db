"""Agents on bad days: one clear sentence, nothing lost, nothing left behind. Both sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import SweCore

PLUGIN = str(Path(__file__).with_name("misbehaving_agents.py"))
TASK = "demo__memofn-1"


AGENTS = [
    ("fill", "unresolved", None, "disk is full"),
    ("orphan", "unresolved", None, ""),
    ("fork", "unresolved", None, "empty"),
    ("unshell", "unresolved", None, "the code inside broke the sandbox"),
    ("hang", "error", "agent", "did not end within its budget of 6 s"),
]
LOCAL = [  # what these do is the same in a container
    ("commit", "unresolved", None, ""),
    ("crash", "error", "agent", "'crash' exited with code 3: about to fail"),
    ("silent", "error", "agent", "made no LLM call through the endpoint"),
    ("absent", "error", "agent", "its program 'no-such-agent' is missing in the "),
    ("flood", "unresolved", None, "empty"),
    ("delete", "unresolved", None, "deleted"),
]


@pytest.mark.parametrize(
    ("sandbox", "agent", "outcome", "boundary", "says"),
    [
        *(("local", *agent) for agent in [*AGENTS, *LOCAL]),
        *(pytest.param("docker", *agent, marks=pytest.mark.docker) for agent in AGENTS),
    ],
    indirect=["sandbox"],
)
@pytest.mark.slow
def test_bad_agent_is_data(
    swe_core: SweCore, sandbox: str, agent: str, outcome: str, boundary: str | None, says: str
) -> None:
    done = swe_core(
        "-p", PLUGIN, "--agent", agent, "--sandbox", sandbox, "--tasks", "demo", "--task", TASK,
        "--set", "limits.agent=6", "--set", "resources.pids=64",
        "--set", "resources.memory_mb=512", "--set", "resources.disk_mb=256",
    )  # fmt: skip
    rollout = done.only
    assert rollout["outcome"] == outcome, done.stderr
    failure, grade = rollout["failure"], rollout["grade"]
    assert (failure or {}).get("boundary") == boundary
    message = failure["message"] if failure else grade["reason"]
    if agent == "fill" and sandbox == "docker":
        says = "exceeds the"  # containers here have no disk quota: it is each file's size that is bounded
    if agent == "unshell" and sandbox == "local":
        says = "empty"  # the system is read-only there: nothing was removed
    assert says in message
    assert "\n" not in message
    assert rollout["reward"] == (None if outcome == "error" else 0.0)
    assert done.code == (1 if outcome == "error" else 0)
    if agent in ("hang", "commit", "orphan"):
        patch = (done.out / "rollouts" / rollout["id"] / "patch.diff").read_text()
        assert "+# changed" in patch  # saved whatever the outcome
        assert "late" not in patch  # what the agent left running was killed before the export
