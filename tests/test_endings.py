"""How an agent's run ends other than by itself: it submits, a budget runs out, or it never asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from swe_core.api.limits import Budgets
from swe_core.api.records import Rollout

from .conftest import Done, Scripted, SweCore

PLUGIN = str(Path(__file__).with_name("ending_agents.py"))
TASK = "demo__memofn-1"
Ends = Callable[..., Done]

pytestmark = pytest.mark.usefixtures("local_sandbox")


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
def test_budget_ends_the_agent_without_a_failure(
    ends: Ends, agent: str, setting: str, ended_by: str, turns: int
) -> None:
    done = ends(agent, setting)
    rollout = _record(done)
    assert (rollout.outcome, rollout.failure, rollout.ended_by) == ("unresolved", None, ended_by), done.stderr
    assert rollout.turns == turns
    assert "changed.txt" in _patch(done)


ELSEWHERE = "it ended before its first call, or is configured to call another endpoint"
TOO_LATE = "within 2 s (limits.first_call).*another endpoint.*cannot reach this one"


@pytest.mark.parametrize(
    ("agent", "setting", "cause"),
    [
        ("late", "limits.first_call=2", TOO_LATE),
        ("only-submit", "budget.turns=9", ELSEWHERE),
        ("late", "budget.wall=1", ELSEWHERE),
        ("image", "budget.turns=9", "its only request was refused: messages[0]: "),
        ("image", "server.max_body=9", "its only request was refused: Maximum request body size 9 exceeded"),
        pytest.param(
            *("image-late", "limits.first_call=10", "each of its 2 requests was refused: messages[0]: "),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_agent_that_was_never_answered_is_an_error_however_it_ends(
    ends: Ends, agent: str, setting: str, cause: str
) -> None:
    """And no verdict on the policy, which was not asked."""
    done = ends(agent, setting)
    rollout = _record(done)
    assert rollout.outcome == "error", done.stderr
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.type) == ("agent", "NoLLMCall")
    for part in cause.split(".*"):
        assert part in rollout.failure.message


@pytest.mark.parametrize("budget", sorted(set(Budgets.model_fields) - {"grace"}))
def test_black_box_refuses_budgets_that_it_cannot_keep(swe_core: SweCore, budget: str) -> None:
    done = swe_core(
        "--mode", "black-box", "--network", "full", "--agent-key-env", "PATH", "--model", "m",
        "--engine-url", "http://127.0.0.1:9/v1", "--set", f"budget.{budget}=100",
    )  # fmt: skip
    assert done.code == 2
    assert f"cannot keep budget.{budget}" in done.stderr


@pytest.mark.engine
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "told"), [pytest.param(32_768, False, marks=pytest.mark.slow), (32_769, True)]
)
async def test_budget_above_the_models_context_is_reported(
    swe_core: SweCore, scripted: Scripted, tmp_path: Path, asked: int, told: bool
) -> None:
    """When the run begins, and in its notes."""
    async with scripted(["done"]) as vllm:
        args = ["--task", TASK, "--engine", "vllm", "--engine-url", vllm.url, "--model", "scripted"]
        args += ["--set", f"budget.context={asked}", "--record", str(tmp_path / "replies.jsonl")]
        done = await anyio.to_thread.run_sync(partial(swe_core, *args))
    assert done.code == 0, done.stderr
    notes = json.loads((done.out / "run.json").read_text())["notes"]
    assert any("budget.context is 32769, but" in note for note in notes) is told
    assert (
        "'scripted' has a context of 32768 tokens, which is the limit" in " ".join(done.stderr.split())
    ) is told


def test_engine_that_counts_no_prompt_refuses_a_context(ends: Ends) -> None:
    done = ends("submit", "budget.context=1000")
    assert done.code == 2
    assert "the engine 'replay' does not count prompt tokens" in done.stderr
