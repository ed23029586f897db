"""Agents on bad days: one clear sentence, nothing lost, nothing left behind. Both sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import SweCore

PLUGIN = str(Path(__file__).with_name("misbehaving_agents.py"))
TASK = "demo__memofn-1"


AGENTS = [
    ("fill", "unresolved", None, "disk is full"),
    ("commit", "unresolved", None, ""),
    ("orphan", "unresolved", None, ""),
]
MORE_AGENTS = [
    ("crash", "error", "agent", "'crash' exited with code 3: about to fail"),
    ("silent", "error", "agent", "made no LLM call through the endpoint"),
    ("absent", "error", "agent", "its program 'no-such-agent' is missing in the "),
    ("hang", "error", "agent", "did not end within its budget of 6 s"),
    ("flood", "unresolved", None, "empty"),
    ("fork", "unresolved", None, "empty"),
    ("delete", "unresolved", None, "deleted"),
    ("unshell", "unresolved", None, "the code inside broke the sandbox"),
]


@pytest.mark.parametrize(
    ("agent", "outcome", "boundary", "says"),
    [*AGENTS, *(pytest.param(*agent, marks=pytest.mark.slow) for agent in MORE_AGENTS)],
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
