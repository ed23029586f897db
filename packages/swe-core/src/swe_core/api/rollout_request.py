"""RolloutRequest, the serialisable order for one rollout, and Observer, which watches rollouts."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from pydantic import Field

from swe_core.api.limits import Budgets, Limits
from swe_core.api.records import Record, Rollout, Turn
from swe_core.api.sandbox import SandboxSpec
from swe_core.api.task import Task

Phase = Literal["open", "prepare", "agent", "export", "grade"]


class RolloutRequest(Record):
    """One attempt at one task. It is serialisable: another process with the same plugins can run it."""

    id: str
    task: Task
    attempt: int = Field(ge=0)
    agent: str
    sandbox: str
    engine: str
    model: str
    spec: SandboxSpec
    limits: Limits
    budget: Budgets = Budgets()
    sandbox_retries: int = Field(default=0, ge=0, description="maximum retries after a sandbox failure")
    summaries: bool = Field(
        default=True, description="whether the ids of summaries are trained, or dropped as `summary`"
    )
    evaluation: int | None = Field(default=None, ge=0, description="as in `swe_core.api.records.Rollout`")

    @property
    def recorded(self) -> dict[str, Any]:
        """Return the fields of `Rollout` that say what was run."""
        same = ("id", "attempt", "agent", "sandbox", "engine", "model", "evaluation")
        return {"task_id": self.task.instance_id, **{name: getattr(self, name) for name in same}}


class Observer(Protocol):
    """Receives the events of rollouts. Methods run in the event loop and must return quickly."""

    def started(self, request: RolloutRequest) -> None:
        """Handle the start of a rollout."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Handle the start of a phase."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Handle an answered LLM call."""

    def finished(self, rollout: Rollout) -> None:
        """Handle the end of a rollout, after its record is on disk."""
