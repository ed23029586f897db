"""A failure of a collaborator, at any of its calls, affects and is reported by its own rollout only."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swe_core.report.token_audit import audit
from swe_core.rollout import state
from swe_core.system import detached

from .faulty_bench import BAD, BROKEN, Faults, Kind, comparable, run_three

ENGINES = ("engine.", "reply.", "dialect.", "folder.")
GOES_ON = ("observer.", "tool.")
"""Errors at these points are logged or reported to the agent."""
POINTS = [
    "agent.command", "agent.env", "agent.failure", "agent.files", "agent.parse_event", "agent.stdin",
    "agent.tools", "dialect.reply", "engine.complete", "engine.end", "engine.piece", "folder.add_turn",
    "grader.grade", "observer.finished", "observer.phase", "observer.started", "observer.turn",
    "process.kill", "process.output", "process.output-end", "process.wait", "provider.close", "provider.open",
    "reply.body", "reply.delta", "reply.end", "sandbox.kill_all", "sandbox.reach", "sandbox.start",
    "tool.run",
]  # fmt: skip
AWAITED = [
    "engine.complete", "engine.end", "grader.grade", "process.kill", "process.output", "process.output-end",
    "process.wait", "provider.close", "provider.open", "sandbox.kill_all", "sandbox.reach", "sandbox.start",
    "tool.run",
]  # fmt: skip
ODD = [
    "agent.command",
    "dialect.reply",
    "engine.complete",
    "grader.grade",
    "observer.turn",
    "process.output",
    "provider.open",
    "sandbox.start",
    "tool.run",
]
"""One for each place that describes an error."""
SHIELDED = ["engine.complete", "engine.end", "process.kill", "provider.close", "tool.run"]
CASES: list[tuple[str, Kind]] = [
    *((point, "raises") for point in POINTS),
    *((point, "wrong") for point in POINTS),
    *((point, "odd") for point in ODD),
    *((point, "cancelled") for point in AWAITED),
]
BY_PHASE = {"open": "sandbox", "prepare": "sandbox", "agent": "agent", "export": "agent", "grade": "grader"}
Undisturbed = tuple[dict[str, Any], Counter[str]]
_undisturbed: list[Undisturbed] = []


@pytest.fixture
async def undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Undisturbed:
    """The records of a run where nothing fails, and the calls that were made for `BAD`."""
    if not _undisturbed:
        faults = Faults()
        run = await run_three(tmp_path / "undisturbed", faults, monkeypatch)
        _undisturbed.append((comparable(run), faults.seen))
    return _undisturbed[0]


async def test_undisturbed_run_resolves_and_covers_every_point(undisturbed: Undisturbed) -> None:
    records, seen = undisturbed
    assert sorted(seen) == POINTS, "each point is one where something fails below"
    for record in records.values():
        assert (record["outcome"], record["failure"], record["turns"]) == ("resolved", None, 2)
        assert record["ledger"]["trainable"] == record["ledger"]["sampled"] > 0
        assert [turn["tokens"]["base"] for turn in record["on disk"]] == [None, 0]


def expected(point: str, kind: Kind, phase: str) -> str:
    """The boundary that a failure in this phase belongs to."""
    if point.startswith(ENGINES):
        return "engine"
    if kind == "cancelled" and point not in ("process.kill", "provider.close"):  # it says not where it was
        return BY_PHASE[phase]
    if (point, kind) == ("provider.open", "wrong"):  # it is no sandbox, also where a grader opens it
        return "sandbox"
    if phase == "agent" and not point.startswith("agent."):
        return "sandbox"
    if phase == "export" and point in ("sandbox.kill_all", "provider.close"):
        return "sandbox"
    return BY_PHASE[phase]


Failures = Callable[[str, Kind], AsyncIterator[tuple[str, dict[str, Any]]]]


@pytest.fixture
def failures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    undisturbed: Undisturbed,
) -> Failures:
    """Lets each call at a point fail, one in a run: in which phase that was, and the record of `BAD` then.

    The other rollouts are as in the undisturbed run.
    """
    records, seen = undisturbed

    async def failing(point: str, kind: Kind) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for nth in range(seen[point]):
            caplog.clear()
            faults = Faults(point, nth, kind)
            run = await run_three(tmp_path / str(nth), faults, monkeypatch)
            assert faults.hit is not None
            after = comparable(run)
            bad = after.pop(BAD)
            assert after == {name: record for name, record in records.items() if name != BAD}
            assert audit(run, run.rollouts()).problems == ()
            yield faults.hit, bad

    return failing


@pytest.mark.parametrize(
    ("point", "kind"),
    [pytest.param(point, kind, marks=() if kind == "raises" else pytest.mark.slow) for point, kind in CASES],
)
async def test_failure_ends_its_own_rollout_only(
    failures: Failures, caplog: pytest.LogCaptureFixture, undisturbed: Undisturbed, point: str, kind: Kind
) -> None:
    async for phase, bad in failures(point, kind):
        if point in ("agent.failure", "agent.parse_event"):  # the policy decides what they read
            assert (bad["outcome"], bad["failure"]) == ("resolved", None)
            assert f"{point.removeprefix('agent.')}()" in bad["agent_failure"]
            continue
        if point.startswith(GOES_ON) or (kind == "wrong" and bad["failure"] is None):
            assert bad == undisturbed[0][BAD]
            assert point.startswith("tool.") or kind == "wrong" or "failed" in caplog.text
            continue
        if point == "provider.close" and bad["retried"]:  # the patch was on disk, so it was graded
            assert bad["outcome"] == "resolved"
            continue
        assert (bad["outcome"], bad["reward"]) == ("error", None)
        assert bad["failure"]["boundary"] == expected(point, kind, phase), bad["failure"]
        assert bad["failure"]["message"]
        assert kind != "raises" or BROKEN in bad["failure"]["message"]
        assert (bad["ledger"] or {"trainable": 0})["trainable"] == 0


@pytest.mark.parametrize("point", SHIELDED)
async def test_hanging_collaborator_is_abandoned(
    failures: Failures, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, point: str
) -> None:
    """Also if it ignores cancellation or is shielded from it."""
    monkeypatch.setattr(detached, "CLOSING", 0.05)
    monkeypatch.setattr(state, "SANDBOX_CLOSING", 0.05)
    async for _, bad in failures(point, "hangs"):
        assert "did not end within 0.05 s and was abandoned" in caplog.text
        if point in ("engine.complete", "tool.run"):  # the budget of time has ended these
            assert (bad["outcome"], bad["ended_by"]) == ("resolved", "wall")
        elif bad["retried"]:  # the patch was on disk, so it was graded
            assert (point, bad["outcome"]) == ("provider.close", "resolved")
        else:
            assert bad["outcome"] == "error"
            assert bad["failure"]["boundary"] == ("engine" if point == "engine.end" else "sandbox")
            assert "within 0.05 s" in bad["failure"]["message"] or "than 0.05 s" in bad["failure"]["message"]
