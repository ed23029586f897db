"""RolloutState: what is known of a running rollout so far, and the record that it becomes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, get_args

from swe_core.api.chain import Chain
from swe_core.api.engine import Usage
from swe_core.api.grader import Grade
from swe_core.api.records import Failure, Ledger, Outcome, Phases, Purpose, Retried, Rollout, SandboxTime
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
_REWARD = {"resolved": 1.0, "unresolved": 0.0}
_LASTING = (PolicyRefused, ImageNotFound, SandboxBroken)
"""Errors of a sandbox that another one would not mend: it would refuse as well, or the error is the policy's
own deed, for which it gets no second try."""


@dataclass(slots=True)
class RolloutState:
    """What is known of a running rollout so far. `boundary` is where it is, and where a failure belongs.

    Attributes:
        collected: Whether `patch` is what the agent made of its task, and on disk, so that only its grade is
            missing.
        opens: What opens the sandboxes for the agent, and for the grader.
        retried: The tries that were given up; what else stands here is of the one that runs.
    """

    request: RolloutRequest
    observer: Observer
    redactor: Redactor
    provider: SandboxProvider
    boundary: Boundary = "sandbox"
    phases: dict[str, float] = field(default_factory=dict)
    agent: AgentRun = field(default_factory=AgentRun)
    patch: bytes = b""
    collected: bool = False
    grade: Grade | None = None
    failure: Failure | None = None
    cancelled_as: str | None = None
    opens: dict[Purpose, TimedProvider] = field(init=False)
    retried: list[Retried] = field(default_factory=list)
    _earlier: list[Gate] = field(default_factory=list)
    _lasting: bool = False
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.opens = {purpose: TimedProvider(self.provider, purpose) for purpose in get_args(Purpose)}

    @property
    def gates(self) -> list[Gate]:
        """Those of all tries."""
        return [*self._earlier, *([self.agent.gate] if self.agent.gate else [])]

    @property
    def chains(self) -> Sequence[Chain]:
        """The training rows of the last try."""
        return self.agent.gate.chains() if self.agent.gate else ()

    @property
    def may_try_again(self) -> bool:
        """Whether it failed for its sandbox, and another one may do better."""
        of_the_sandbox = self.failure is not None and self.failure.boundary == "sandbox"
        return of_the_sandbox and not self._lasting and len(self.retried) < self.request.sandbox_retries

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """The length of the context is the phase `name`."""
        self.boundary = _BOUNDARY[name]
        self.observer.phase(self.request.id, name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = time.monotonic() - started

    def fail(self, error: Exception, boundary: Boundary) -> None:
        """The rollout has no verdict because of `error`; of several, the first one counts."""
        self.failure = self.failure or Failure(
            boundary=boundary_of(error, boundary),
            type=type(error).__name__,
            message=self.redactor.text(sentence(error)),
        )
        self._lasting = isinstance(error, _LASTING)

    def give_up_try(self, failure: Failure) -> Retried:
        """What has failed was a try: it is noted as that, and the next one begins. Where the patch is safe,
        only its grading is tried again."""
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
            self.agent, self.patch = AgentRun(), b""
            self.phases.clear()
        self.retried.append(given_up)
        self.failure, self._began = None, time.monotonic()
        return given_up

    def record(self, outcome: Outcome, started_at: datetime, seconds: float) -> Rollout:
        """The finished rollout; an error of the engine where its tokens are not all accounted for."""
        ledger: Ledger | None = None
        gate, request = self.agent.gate, self.request
        try:  # without a verdict none of the tokens is trained
            cancelled = self.cancelled_as if outcome == "cancelled" else None
            reason = None if outcome in _REWARD else cancelled or outcome
            ledger = self._ledger(reason)
        except LedgerError as error:
            outcome = "error"
            self.fail(error, "engine")
        known: dict[str, Any] = {name: round(value, 4) for name, value in self.phases.items()}
        return Rollout(
            id=request.id,
            task_id=request.task.instance_id,
            attempt=request.attempt,
            agent=request.agent,
            sandbox=request.sandbox,
            engine=request.engine,
            model=request.model,
            outcome=outcome,
            cancelled_as=self.cancelled_as if outcome == "cancelled" else None,
            reward=_REWARD.get(outcome),
            failure=self.failure,
            grade=self.grade,
            turns=gate.turns if gate else 0,
            usage=gate.usage if gate else Usage(),
            ledger=ledger,
            ended_by=gate.ended_by if gate else None,
            patch_bytes=len(self.patch),
            agent_exit_code=self.agent.exit_code,
            phases=Phases(**known),
            sandboxes=tuple(spent for provider in self.opens.values() for spent in provider.spent),
            retried=tuple(self.retried),
            started_at=started_at,
            seconds=round(seconds, 4),
        )

    def _ledger(self, no_reward: str | None) -> Ledger | None:
        """Of all tries: whatever those sampled that were given up is dropped."""
        found = [gate.ledger(RETRIED) for gate in self._earlier]
        found += [self.agent.gate.ledger(no_reward)] if self.agent.gate else []
        ledgers = [ledger for ledger in found if ledger is not None]
        return add_ledgers(ledgers) if ledgers else None


class TimedProvider:
    """`inner`, with the time that its sandboxes stood open.

    From when a sandbox was open until it was closed: waiting for a place or for a pull costs nothing.

    Args:
        purpose: What all of them are opened for.
    """

    def __init__(self, inner: SandboxProvider, purpose: Purpose) -> None:
        self._inner = inner
        self._purpose = purpose
        self._spent: dict[str | None, tuple[int, float]] = {}

    @property
    def spent(self) -> tuple[SandboxTime, ...]:
        """Of the sandboxes that are closed, by flavor."""
        return tuple(
            SandboxTime(purpose=self._purpose, flavor=flavor, sandboxes=count, seconds=round(seconds, 4))
            for flavor, (count, seconds) in self._spent.items()
        )

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`. It waits `SANDBOX_CLOSING` seconds for a sandbox to close.

        Raises:
            SandboxError: It did not, or has a flavor that is no name.
        """
        opened: tuple[str | None, float] | None = None
        try:
            async with held(self._inner.open(spec), "the sandbox", SANDBOX_CLOSING, SandboxError) as sandbox:
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
        """See `SandboxProvider.notes`."""
        return self._inner.notes()

    async def list(self) -> Sequence[SandboxEntry]:
        """See `SandboxProvider.list`."""
        return await self._inner.list()

    async def reap(self) -> int:
        """See `SandboxProvider.reap`."""
        return await self._inner.reap()
