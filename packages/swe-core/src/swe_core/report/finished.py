"""Finished: what the facts of a run need of a rollout. `Rollout` has it, and the viewer's short form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from swe_core.api.grader import TamperKind
from swe_core.api.records import Budget, Outcome
from swe_core.errors import Boundary


class FinishedFailure(Protocol):
    """As `swe_core.api.records.Failure`."""

    @property
    def boundary(self) -> Boundary: ...
    @property
    def type(self) -> str: ...
    @property
    def message(self) -> str: ...


class FinishedUsage(Protocol):
    """As `swe_core.api.engine.Usage`."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...


class FinishedTampering(Protocol):
    """As `swe_core.api.grader.Tampering`."""

    @property
    def kind(self) -> TamperKind: ...


class FinishedSuspicion(Protocol):
    """As `swe_core.api.grader.Suspicion`."""

    @property
    def kind(self) -> str: ...


class FinishedGrade(Protocol):
    """As `swe_core.api.grader.Grade`."""

    @property
    def resolved(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def unchecked(self) -> str: ...
    @property
    def tampering(self) -> Sequence[FinishedTampering]: ...
    @property
    def suspicious(self) -> Sequence[FinishedSuspicion]: ...


class FinishedPhases(Protocol):
    """As `swe_core.api.records.Phases`."""

    @property
    def open(self) -> float | None: ...
    @property
    def prepare(self) -> float | None: ...
    @property
    def agent(self) -> float | None: ...
    @property
    def export(self) -> float | None: ...
    @property
    def grade(self) -> float | None: ...


class FinishedSandbox(Protocol):
    """As `swe_core.api.records.SandboxTime`."""

    @property
    def flavor(self) -> str | None: ...
    @property
    def sandboxes(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class FinishedTry(Protocol):
    """As `swe_core.api.records.Retried`."""

    @property
    def failure(self) -> FinishedFailure: ...
    @property
    def usage(self) -> FinishedUsage: ...
    @property
    def seconds(self) -> float: ...


class Finished(Protocol):
    """A finished rollout, as `swe_core.api.records.Rollout`."""

    @property
    def task_id(self) -> str: ...
    @property
    def sandbox(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def evaluation(self) -> int | None: ...
    @property
    def cancelled_as(self) -> str | None: ...
    @property
    def ended_by(self) -> Budget | None: ...
    @property
    def failure(self) -> FinishedFailure | None: ...
    @property
    def grade(self) -> FinishedGrade | None: ...
    @property
    def turns(self) -> int: ...
    @property
    def usage(self) -> FinishedUsage: ...
    @property
    def phases(self) -> FinishedPhases: ...
    @property
    def sandboxes(self) -> Sequence[FinishedSandbox]: ...
    @property
    def retried(self) -> Sequence[FinishedTry]: ...
    @property
    def seconds(self) -> float: ...
