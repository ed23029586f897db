"""What the loop is given: a serialisable request, the live parts of the run, and who is told."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import Field

from swe_core.api.limits import Budgets, Limits
from swe_core.api.records import Record, Rollout, Turn
from swe_core.api.sandbox import SandboxSpec
from swe_core.api.task import Task

Phase = Literal["open", "prepare", "agent", "export", "grade"]


class RolloutRequest(Record):
    """What to roll out. Serialisable: an executor elsewhere can run it from this and the same plugins."""

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
    sandbox_retries: int = Field(default=0, ge=0, description="how often it is run again for its sandbox")


class Observer(Protocol):
    """Told what happens while it happens; called in the event loop, so it returns quickly."""

    def started(self, request: RolloutRequest) -> None:
        """A rollout begins."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """It enters a phase."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """An LLM call of it was answered."""

    def finished(self, rollout: Rollout) -> None:
        """It is over and on disk. Called by the runner, after it was written."""
