"""RolloutWorker: takes the runner and does something with what it finishes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swe_core.api.chain import Chain
from swe_core.api.engine import Engine
from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Observer, RolloutRequest


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A rollout that is over and on disk.

    Args:
        rollout: Its record.
        chains: Its training rows, the same as `RolloutStore.chains` makes of its turns on disk.
            Empty without a verdict.
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
        """Return the ids of the rollouts that need no other try."""
        ...

    def rollouts(self) -> Iterable[Rollout]:
        """Return the finished rollouts, in the order in which they finished."""
        ...

    def chains(self, rollout_id: str) -> Sequence[Chain]:
        """Return the training rows of a rollout, made again from its calls on disk."""
        ...

    def turns(self, rollout_id: str) -> Iterable[Turn]:
        """Return the LLM calls of a rollout, in order."""
        ...


class RolloutRunner(Protocol):
    """What a worker drives: it runs the rollouts of one run and keeps what they end with."""

    @property
    def requests(self) -> Sequence[RolloutRequest]:
        """Every attempt at every task, in the order in which they start.

        A worker that needs other rollouts makes their requests from these, with ids of their own.
        """
        ...

    @property
    def store(self) -> RolloutStore:
        """Where each finished rollout is written before an observer hears of it."""
        ...

    @property
    def concurrency(self) -> int:
        """Rollouts at once."""
        ...

    @property
    def engine(self) -> Engine | None:
        """What answers LLM calls; None in black-box mode, and for an agent that makes none."""
        ...

    async def run_all(self) -> None:
        """Run every request without a finished rollout; cancelled, record the running ones as cancelled.

        Raises:
            SweError: The run directory can no longer be written, or the engine is unfit. Finished rollouts
                are kept.
        """
        ...

    async def run(self, request: RolloutRequest) -> FinishedRollout:
        """Run one rollout and record it, however it ends. The caller bounds how many run at once.

        Raises:
            SweError: As in `run_all`.
        """
        ...

    def cancel(self, rollout_id: str, why: str) -> None:
        """End a running rollout: close its sandbox at once and record it as cancelled.

        Args:
            why: Stands in the record and, for its tokens, in the ledger, such as "stale". The first counts.
        """
        ...

    def observe(self, observer: Observer) -> None:
        """Add an observer of what happens from now on."""
        ...


class RolloutWorker(Protocol):
    """Drives a run: collects rollouts to a run directory, or feeds a trainer."""

    async def run(self, runner: RolloutRunner) -> None:
        """Drive `runner` to its end; return when the run is over."""
        ...
