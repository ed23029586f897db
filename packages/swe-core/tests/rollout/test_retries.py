"""Rollouts that are run again after a sandbox failure: what is kept, counted and retried."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from swe_core.api.records import Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.sandbox import Sandbox
from swe_core.errors import (
    EngineUnavailable,
    GraderError,
    ImageNotFound,
    PolicyRefused,
    SandboxBroken,
    SandboxDied,
    SandboxTimeout,
    SweError,
)
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.system.redaction import redact, redaction_scope
from swe_core.tokens.chains import chains_of

from .runner_bench import Bench

GONE = "its host is gone"


def again(request: RolloutRequest, times: int) -> RolloutRequest:
    return request.model_copy(update={"sandbox_retries": times})


def fail(bench: Bench, where: str, times: int = 1, error: Exception | None = None) -> None:
    """The next `times` sandboxes fail in that phase."""
    left = times
    problem = error or SandboxDied(GONE)

    def opened(sandbox: Sandbox) -> None:
        nonlocal left
        is_graders = sandbox.spec.network == "none"
        if left == 0 or is_graders != (where == "grade"):
            return
        left -= 1
        if where in ("open", "grade"):
            raise problem

        sandbox.kill_all = AsyncMock(side_effect=problem)  # type: ignore[method-assign]  # of this one

    bench.provider.on_open = opened


def files(bench: Bench, rollout: Rollout) -> set[str]:
    folder = bench.run.path / FOLDERS / rollout.id
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("where", "lost", "folder", "turns"),
    [
        ("open", set(), "retried-1", 0),
        ("export", {"retried-1/turns.jsonl"}, "retried-1", 1),
        ("grade", set(), None, 0),
    ],
)
async def test_retried_rollout_counts_its_last_attempt(
    bench: Bench, where: str, lost: set[str], folder: str | None, turns: int
) -> None:
    fail(bench, where)
    rollout = (await bench.runner.run(again(bench.first, 1))).rollout
    assert (rollout.outcome, rollout.reward, rollout.failure) == ("resolved", 1.0, None)
    assert bench.run.rollouts() == [rollout], "one record in all"
    (given_up,) = rollout.retried
    assert (given_up.folder, given_up.turns) == (folder, turns)
    assert given_up.failure.boundary == "sandbox"
    assert given_up.failure.message == GONE
    assert 0 < given_up.seconds < rollout.seconds
    assert files(bench, rollout) == {"turns.jsonl", "patch.diff", "grade.json", "test.log"} | lost
    names = [name for _, name in bench.witness.seen]
    assert names.count("started") == names.count("finished") == 1
    assert names.count("open") == (1 if where == "grade" else 2), "the patch was exported already"
    assert rollout.turns == 1
    bench.accounted()


async def test_tokens_and_time_of_lost_attempts_are_counted(bench: Bench) -> None:
    """They are billed; a sandbox that did not open is not."""
    bench.provider.flavors = ["small", "large", "large"]
    fail(bench, "export", times=2)
    rollout = (await bench.runner.run(again(bench.first, 3))).rollout
    assert [one.folder for one in rollout.retried] == ["retried-1", "retried-2"]
    lost = [bench.run.turns(rollout.id, one.folder or "") for one in rollout.retried]
    sampled = [sum(len(turn.tokens.completion) for turn in turns if turn.tokens) for turns in lost]
    assert all(sampled)
    assert [one.usage.completion_tokens for one in rollout.retried] == sampled
    assert rollout.ledger.sampled == bench.engine.typed[rollout.id]
    assert rollout.ledger.dropped == {"retried": sum(sampled)}
    (chain,) = chains_of(bench.run.turns(rollout.id))
    assert chain.completion_mask.sum() == rollout.ledger.trainable == rollout.usage.completion_tokens
    assert rollout.ledger.sampled == rollout.ledger.trainable + sum(sampled)
    used = {(one.purpose, one.flavor): one.sandboxes for one in rollout.sandboxes}
    assert used == {("agent", "small"): 1, ("agent", "large"): 2, ("grade", None): 1}
    assert all(one.seconds > 0 for one in rollout.sandboxes if one.purpose == "agent")
    assert sum(one.seconds for one in rollout.sandboxes) <= rollout.seconds
    bench.accounted()
    (bench.run.path / FOLDERS / rollout.id / "retried-1" / "turns.jsonl").unlink()
    with pytest.raises(AssertionError):
        bench.accounted()


async def test_rollout_errors_after_its_last_retry(bench: Bench) -> None:
    fail(bench, "export", times=9)
    rollout = (await bench.runner.run(again(bench.first, 2))).rollout
    assert (rollout.outcome, rollout.reward) == ("error", None)
    assert rollout.failure.boundary == "sandbox"
    assert len(rollout.retried) == 2
    assert rollout.ledger.dropped.keys() == {"retried", "error"}
    assert sum(rollout.ledger.dropped.values()) == rollout.ledger.sampled
    bench.accounted()


@pytest.mark.parametrize(
    ("where", "error", "tries"),
    [
        ("open", SandboxTimeout("too slow"), 2),
        ("open", OSError("a defect of the provider"), 2),
        ("open", PolicyRefused("no such limit here"), 1),
        ("open", ImageNotFound("no such image"), 1),
        ("open", EngineUnavailable("it is down"), 1),
        ("grade", GraderError("it cannot decide"), 1),
        ("grade", SandboxBroken("by the tests"), 1),
    ],
)
async def test_only_sandbox_errors_are_retried(
    bench: Bench, where: str, error: Exception, tries: int
) -> None:
    fail(bench, where, times=9, error=error)
    rollout = (await bench.runner.run(again(bench.first, 1))).rollout
    assert rollout.outcome == "error"
    assert len(rollout.retried) == tries - 1


async def test_exported_patch_survives_failed_sandbox_close(bench: Bench) -> None:
    bench.provider.closes = False

    def opened(sandbox: Sandbox) -> None:
        bench.provider.closes = sandbox.spec.network == "none"

    bench.provider.on_open = opened
    rollout = (await bench.runner.run(again(bench.first, 1))).rollout
    assert rollout.outcome == "resolved"
    assert [one.folder for one in rollout.retried] == [None]
    assert [name for _, name in bench.witness.seen].count("agent") == 1
    bench.accounted()


async def test_cancellation_in_a_later_attempt_keeps_both(bench: Bench) -> None:
    """The record has both attempts, and every dropped token a reason."""
    fail(bench, "export")

    def turn(rollout_id: str) -> None:
        if [name for _, name in bench.witness.seen].count("turn") == 2:
            bench.runner.cancel(rollout_id, "stale")

    bench.witness.on_turn = turn
    bench.provider.flavors = ["small"] * 2
    rollout = (await bench.runner.run(again(bench.first, 1))).rollout
    assert (rollout.outcome, rollout.cancelled_as, rollout.failure) == ("cancelled", "stale", None)
    assert len(rollout.retried) == 1
    assert rollout.ledger.dropped.keys() == {"retried", "stale"}
    assert sum(rollout.ledger.dropped.values()) == rollout.ledger.sampled
    (used,) = rollout.sandboxes  # the time of cancelled rollouts counts, too
    assert (used.purpose, used.flavor, used.sandboxes) == ("agent", "small", 2)
    bench.accounted()


async def test_access_tokens_and_temporary_secrets_are_redacted_until_the_record(bench: Bench) -> None:
    fail(bench, "export")
    failing, opened = bench.provider.on_open, itertools.count(1)

    def on_open(sandbox: Sandbox) -> None:
        redact(f"token-of-{next(opened)}", temporary=True)
        failing(sandbox)

    known: list[set[str]] = []
    tokens: set[str] = set()
    bench.provider.on_open = on_open
    bench.witness.on_turn = lambda rollout_id: tokens.update(bench.run.redactor.known())
    with redaction_scope() as redactor:
        bench.witness.on_finished = lambda rollout: known.append(redactor.known())
        await bench.runner.run(again(bench.first, 1))
        assert known == [{"token-of-1", "token-of-2", "token-of-3"}]
        assert redactor.known() == set()
    assert len(tokens) == 2, "each try has its own"
    assert bench.run.redactor.known() == set()


async def test_unarchivable_attempt_ends_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, for example, is not a fault of the rollout."""
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if target.parent.name.startswith("retried-"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    fail(bench, "export")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with pytest.raises(SweError, match=r"cannot write to the run directory .*No space left"):
            await bench.runner.run(again(bench.first, 1))
    (rollout,) = bench.run.rollouts()
    assert rollout.outcome == "cancelled", "a resumed run repeats it"
    left = RunDirectory.resume(bench.run.path, bench.run.redactor, ["cancelled"])
    assert left.finished() == {}
    assert list((left.path / FOLDERS).iterdir()) == []


async def test_sandbox_time_excludes_opening(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("swe_core.rollout.state.monotonic", lambda: sum(waits))
    bench.provider.on_open = lambda sandbox: waits.append(100.0)
    bench.witness.on_turn = lambda rollout_id: waits.append(8.0)
    rollout = (await bench.runner.run(bench.first)).rollout
    assert {one.purpose: one.seconds for one in rollout.sandboxes} == {"agent": 8.0, "grade": 0.0}
