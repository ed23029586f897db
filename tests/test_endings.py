"""How an agent's run ends other than by itself: it submits, a budget runs out, or it never asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from swe_core.api.records import Rollout

from .conftest import Done, Scripted, SweCore

PLUGIN = str(Path(__file__).with_name("ending_agents.py"))
TASK = "demo__memofn-1"
Ends = Callable[..., Done]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]


@pytest.fixture
def ends(swe_core: SweCore, tmp_path: Path) -> Ends:
    replies = [{"message": {"role": "assistant", "content": f"reply {number}"}} for number in range(3)]
    (tmp_path / "replies.jsonl").write_text(json.dumps({"task_id": TASK, "replies": replies}) + "\n")

    def run(agent: str, *settings: str) -> Done:
        sets = [word for setting in ("budget.grace=0.2", *settings) for word in ("--set", setting)]
        return swe_core(
            "-p", PLUGIN, "--agent", agent, "--task", TASK, "--engine", "replay",
            "--recording", str(tmp_path / "replies.jsonl"), *sets,
            env={"SWE_TEST_DIR": str(tmp_path)},
        )  # fmt: skip

    return run


def _record(done: Done) -> Rollout:
    return Rollout.model_validate(done.only)


def _patch(done: Done) -> str:
    return (done.out / "rollouts" / done.only["id"] / "patch.diff").read_text()


def test_agent_that_submits_is_ended_and_graded(ends: Ends, tmp_path: Path) -> None:
    done = ends("submit")
    rollout = _record(done)
    assert (rollout.outcome, rollout.failure, rollout.ended_by) == ("unresolved", None, None), done.stderr
    assert rollout.turns == 1
    assert "changed.txt" in _patch(done)
    assert "looked" in (done.out / "rollouts" / rollout.id / "agent.log").read_text()
    # What the host showed meanwhile, and shows no more.
    note = json.loads((tmp_path / "note.json").read_text())
    assert note["mode"] == 0o600
    assert note["pid"] != os.getpid()
    assert "swe_rollouts_open 1.0" in note["found"]
    assert not (done.out / "server.json").exists()
    for file in done.out.rglob("*"):
        assert file.is_dir() or note["metrics_token"].encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("agent", "setting", "ended_by", "turns"),
    [
        ("insist", "budget.turns=2", "turns", 2),
        pytest.param("dawdle", "budget.wall=10", "wall", 1, marks=pytest.mark.slow),
    ],
)
def test_budget_ends_without_failure(ends: Ends, agent: str, setting: str, ended_by: str, turns: int) -> None:
    done = ends(agent, setting)
    rollout = _record(done)
    assert (rollout.outcome, rollout.failure, rollout.ended_by) == ("unresolved", None, ended_by), done.stderr
    assert rollout.turns == turns
    assert "changed.txt" in _patch(done)


@pytest.mark.engine
async def test_budget_over_the_context_is_told(swe_core: SweCore, scripted: Scripted, tmp_path: Path) -> None:
    """When the run begins, and in its notes."""
    async with scripted(["done"]) as vllm:
        args = ["--task", TASK, "--engine", "vllm", "--engine-url", vllm.url, "--model", "scripted"]
        args += ["--set", "budget.context=32769", "--record", str(tmp_path / "replies.jsonl")]
        done = await anyio.to_thread.run_sync(partial(swe_core, *args))
    assert done.code == 0, done.stderr
    notes = json.loads((done.out / "run.json").read_text())["notes"]
    assert any("budget.context is 32769, but" in note for note in notes)
    assert "'scripted' has a context of 32768 tokens, which is the limit" in " ".join(done.stderr.split())
