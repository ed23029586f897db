"""RolloutWorker, which drives a run, and the RolloutRunner and RolloutStore that it gets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swe_core.api.agent import AgentSpec
from swe_core.api.chain import Chain
from swe_core.api.engine import Engine
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Observer, RolloutRequest


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A finished rollout whose record is on disk.

    Args:
        rollout: The record.
        chains: The training rows, equal to `RolloutStore.chains`. Empty without a verdict.
    """

    rollout: Rollout
    chains: Sequence[Chain] = ()


class RolloutStore(Protocol):
    """The run directory, as a worker reads it."""

    @property
    def path(self) -> Path:
        """The run directory."""
        ...

    def finished(self) -> Collection[str]:
        """Return the ids of the rollouts that need not run again."""
        ...

    def rollouts(self) -> Iterable[Rollout]:
        """Return the finished rollouts, in the order in which they finished."""
        ...

    def chains(self, rollout_id: str) -> Sequence[Chain]:
        """Return the training rows of a rollout, derived from its calls on disk."""
        ...

    def turns(self, rollout_id: str) -> Iterable[Turn]:
        """Return the LLM calls of a rollout, in order."""
        ...

    def patch(self, rollout_id: str) -> bytes | None:
        """Return the patch of a rollout; None without one."""
        ...


class RolloutRunner(Protocol):
    """Runs the rollouts of one run and records them."""

    @property
    def requests(self) -> Sequence[RolloutRequest]:
        """Return one request for every attempt at every task, in the order in which they start.

        A worker that needs other rollouts derives requests from these, with new ids.
        """
        ...

    @property
    def store(self) -> RolloutStore:
        """Return the run directory, which gets each finished rollout before an observer does."""
        ...

    @property
    def concurrency(self) -> int:
        """Return the maximum number of concurrent rollouts."""
        ...

    @property
    def engine(self) -> Engine | None:
        """Return the engine; None in black-box mode, and for an agent without LLM calls."""
        ...

    async def run_all(self) -> None:
        """Run every request without a finished rollout.

        On cancellation, record the running rollouts as cancelled.

        Raises:
            RunStopped: Equal errors (`run.max_errors`) or a failing reward hook ended the run. The running
                rollouts are recorded as cancelled.
            SweError: The run directory cannot be written, or the engine does not fit. Finished rollouts
                remain.
        """
        ...

    async def run(self, request: RolloutRequest, agent: AgentSpec | None = None) -> FinishedRollout:
        """Run one rollout and record it, however it ends. The caller limits the concurrency.

        Args:
            agent: Runs in place of the run's agent. It has no assets.

        Raises:
            SweError: As in `run_all`.
        """
        ...

    def cancel(self, rollout_id: str, why: str) -> None:
        """End a running rollout: close its sandbox at once and record it as cancelled.

        Args:
            why: Reason in the record and, for its tokens, in the ledger, such as "stale". The first call
                counts.
        """
        ...

    def set_policy_version(self, version: int) -> None:
        """Set the policy version of all ids from now on; see `Engine.set_policy_version`."""
        ...

    async def take_out(self, url: str) -> Collection[str]:
        """Give no more rollouts to the server of `url`, wherever they run; see `Engine.take_out`."""
        ...

    def put_in(self, url: str) -> None:
        """Give rollouts to the server of `url` again; see `Engine.put_in`."""
        ...

    def observe(self, observer: Observer) -> None:
        """Add an observer of future events."""
        ...


class RolloutWorker(Protocol):
    """Drives a run: collects rollouts to a run directory, or feeds a trainer."""

    async def run(self, runner: RolloutRunner) -> None:
        """Run rollouts with `runner` and return at the end of the run."""
        ...
