"""RolloutState: the state of a running rollout, and the record that it becomes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, get_args

from swe_core.api.chain import Chain
from swe_core.api.contracts import opened as opened_sandbox
from swe_core.api.engine import Usage
from swe_core.api.grader import Grade
from swe_core.api.records import (
    EVALUATION,
    Failure,
    Ledger,
    Outcome,
    Phases,
    Purpose,
    Retried,
    Rollout,
    SandboxTime,
)
from swe_core.api.rollout_request import Observer, Phase, RolloutRequest
from swe_core.api.sandbox import Sandbox, SandboxEntry, SandboxProvider, SandboxSpec
from swe_core.errors import (
    Boundary,
    ImageNotFound,
    LedgerError,
    PolicyRefused,
    SandboxBroken,
    SandboxError,
    boundary_of,
    sentence,
)
from swe_core.interception.gate import Gate
from swe_core.rollout.agent_run import AgentRun
from swe_core.system.detached import SANDBOX_CLOSING, held
from swe_core.system.redaction import Redactor
from swe_core.tokens.ledger import RETRIED, add_ledgers

_BOUNDARY: dict[Phase, Boundary] = {
    "open": "sandbox",
    "prepare": "sandbox",
    "agent": "agent",
    "export": "agent",
    "grade": "grader",
}
_VERDICTS: Sequence[Outcome] = ("resolved", "unresolved")
_FINAL = (PolicyRefused, ImageNotFound, SandboxBroken)
"""Sandbox errors after which the rollout is not tried again: another sandbox would fail as well, or the
policy caused the error."""


@dataclass(slots=True)
class RolloutState:
    """The state of a running rollout. All but `retried` describes the current attempt.

    Attributes:
        boundary: The boundary that a failure at this point belongs to.
        no_patch: Why the policy left no patch; empty where it may have left one.
        agent_failure: How the agent failed in spite of a verdict; empty if it did not.
        collected: Whether `patch` is final and on disk, or `no_patch` known: only the grade is missing.
        opens: Opens the sandboxes of the agent, and those of the grader.
        retried: The earlier attempts, which failed.
    """

    request: RolloutRequest
    observer: Observer
    redactor: Redactor
    provider: SandboxProvider
    boundary: Boundary = "sandbox"
    phases: dict[str, float] = field(default_factory=dict)
    agent: AgentRun = field(default_factory=AgentRun)
    patch: bytes = b""
    no_patch: str = ""
    agent_failure: str = ""
    notes: Sequence[str] = ()
    collected: bool = False
    grade: Grade | None = None
    failure: Failure | None = None
    cancelled_as: str | None = None
    opens: dict[Purpose, TimedProvider] = field(init=False)
    retried: list[Retried] = field(default_factory=list)
    _earlier: list[Gate] = field(default_factory=list)
    _is_final: bool = False
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.opens = {purpose: TimedProvider(self.provider, purpose) for purpose in get_args(Purpose)}

    @property
    def gates(self) -> list[Gate]:
        """Return the gates of all attempts."""
        return [*self._earlier, *([self.agent.gate] if self.agent.gate else [])]

    @property
    def chains(self) -> Sequence[Chain]:
        """Return the training rows of the current attempt."""
        return self.agent.gate.chains() if self.agent.gate else ()

    @property
    def may_try_again(self) -> bool:
        """Return whether the sandbox failed, another one may succeed, and the request allows one more."""
        sandbox_failed = self.failure is not None and self.failure.boundary == "sandbox"
        # Where only the close failed, which code inside may cause, the grading still has to begin.
        closing = self.collected and "grade" not in self.phases
        allowed = closing or len(self.retried) < self.request.sandbox_retries
        return sandbox_failed and allowed and (closing or not self._is_final)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Time the body of the context as the phase `name`."""
        self.boundary = _BOUNDARY[name]
        self.observer.phase(self.request.id, name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = time.monotonic() - started

    def fail(self, error: Exception, boundary: Boundary) -> None:
        """Note `error` as why the rollout has no verdict; the first one counts."""
        self.failure = self.failure or Failure(
            boundary=boundary_of(error, boundary),
            type=type(error).__name__,
            message=self.redactor.text(sentence(error)),
        )
        self._is_final = isinstance(error, _FINAL)

    def give_up_try(self, failure: Failure) -> Retried:
        """Add the failed attempt to `retried` and prepare the next one.

        With the patch on disk, the next attempt is only a grading.
        """
        if self.collected:
            given_up = Retried(failure=failure, folder=None, seconds=round(self.phases.get("grade", 0.0), 4))
        else:
            gate, number = self.agent.gate, len(self.retried) + 1
            given_up = Retried(
                failure=failure,
                folder=f"retried-{number}",
                turns=gate.turns if gate else 0,
                usage=gate.usage if gate else Usage(),
                seconds=round(time.monotonic() - self._began, 4),
            )
            self._earlier = self.gates
            self.agent, self.patch, self.notes, self.agent_failure = AgentRun(), b"", (), ""
            self.phases.clear()
        self.retried.append(given_up)
        self.failure, self._began = None, time.monotonic()
        return given_up

    def record(self, outcome: Outcome, started_at: datetime, seconds: float) -> Rollout:
        """Return the finished rollout: an error of the engine if its tokens are not all accounted for."""
        ledger: Ledger | None = None
        gate, request = self.agent.gate, self.request
        try:  # no token of a rollout without a verdict is trained, and none of an evaluation
            cancelled = self.cancelled_as if outcome == "cancelled" else None
            reason = None if outcome in _VERDICTS else cancelled or outcome
            if reason is None and request.evaluation is not None:
                reason = EVALUATION
            ledger = self._ledger(reason)
        except LedgerError as error:
            outcome = "error"
            self.fail(error, "engine")
        known: dict[str, Any] = {name: round(value, 4) for name, value in self.phases.items()}
        return Rollout(
            **request.recorded,
            outcome=outcome,
            cancelled_as=self.cancelled_as if outcome == "cancelled" else None,
            reward=self.grade.reward if self.grade is not None and outcome in _VERDICTS else None,
            failure=self.failure,
            grade=self.grade,
            turns=gate.turns if gate else 0,
            usage=gate.usage if gate else Usage(),
            ledger=ledger,
            ended_by=gate.ended_by if gate else None,
            finish_reason=gate.finish_reason if gate else None,
            patch_bytes=len(self.patch),
            notes=tuple(map(self.redactor.text, self.notes)),
            agent_exit_code=self.agent.exit_code,
            agent_failure=self.redactor.text(self.agent_failure) or None,
            phases=Phases(**known),
            sandboxes=tuple(spent for provider in self.opens.values() for spent in provider.spent),
            retried=tuple(self.retried),
            started_at=started_at,
            seconds=round(seconds, 4),
        )

    def _ledger(self, no_reward: str | None) -> Ledger | None:
        """Return the ledger of all attempts; the tokens of the earlier ones are dropped."""
        found = [gate.ledger(RETRIED) for gate in self._earlier]
        found += [self.agent.gate.ledger(no_reward)] if self.agent.gate else []
        ledgers = [ledger for ledger in found if ledger is not None]
        return add_ledgers(ledgers) if ledgers else None


class TimedProvider:
    """A provider that measures how long the sandboxes of `inner` are open.

    The time before a sandbox is open, such as that of a pull, does not count.

    Args:
        purpose: What all these sandboxes are opened for.
    """

    def __init__(self, inner: SandboxProvider, purpose: Purpose) -> None:
        self._inner = inner
        self._purpose = purpose
        self._spent: dict[str | None, tuple[int, float]] = {}

    @property
    def spent(self) -> tuple[SandboxTime, ...]:
        """Return the time of the closed sandboxes, by flavor."""
        return tuple(
            SandboxTime(purpose=self._purpose, flavor=flavor, sandboxes=count, seconds=round(seconds, 4))
            for flavor, (count, seconds) in self._spent.items()
        )

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`.

        Raises:
            SandboxError: The sandbox did not close within `SANDBOX_CLOSING` seconds, or has a wrong flavor.
        """
        context = opened_sandbox(self._inner, spec)
        opened: tuple[str | None, float] | None = None
        try:
            async with held(context, "the sandbox", SANDBOX_CLOSING, SandboxError) as sandbox:
                if not isinstance(sandbox.flavor, str | None):
                    raise SandboxError(f"the flavor of a sandbox is {sandbox.flavor!r}, expected a name")
                opened = sandbox.flavor, monotonic()
                yield sandbox
        finally:
            if opened is not None:
                flavor, began = opened
                count, seconds = self._spent.get(flavor, (0, 0.0))
                self._spent[flavor] = count + 1, seconds + monotonic() - began

    def notes(self) -> Sequence[str]:
        return self._inner.notes()

    async def list(self) -> Sequence[SandboxEntry]:
        return await self._inner.list()

    async def reap(self) -> int:
        return await self._inner.reap()
