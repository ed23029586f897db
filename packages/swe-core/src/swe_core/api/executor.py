"""Executor: runs the rollouts of a run, in this process, in others or on other machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from swe_core.api.agent import AgentSpec
from swe_core.api.engine import Engine
from swe_core.api.records import Outcome
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.worker import FinishedRollout

Commit = Callable[[FinishedRollout], object]
"""Records a finished rollout. When it returns, the record is on disk."""


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where the metrics of a run are served.

    Args:
        url: `http://HOST:PORT`; the metrics are at `/metrics`.
        token: The bearer token of the metrics.
    """

    url: str
    token: str


class RolloutSite(Protocol):
    """Everything that rollouts need, opened in this process: sandboxes, interception server, grader."""

    @property
    def notes(self) -> Sequence[str]:
        """Return sentences for the user about these sandboxes and this server."""
        ...

    @property
    def metrics(self) -> MetricsAddress | None:
        """Return where the interception server has its metrics; None without one."""
        ...

    async def run(
        self, request: RolloutRequest, observer: Observer, commit: Commit, agent: AgentSpec | None = None
    ) -> None:
        """Run one rollout; see `Executor.submit`."""
        ...

    def cancel(self, rollout_id: str, why: str) -> None:
        """See `Executor.cancel`."""
        ...


@dataclass(frozen=True, slots=True)
class ExecutorRun:
    """The run that an executor serves.

    Args:
        settings: All settings, as JSON. Another process with the same plugins makes the same plan from them.
        versions: Name → version of Python and of the packages that the run uses.
        directory: The run directory. The folder of a finished rollout is in its `rollouts/`, named by the id.
        concurrency: Maximum number of rollouts at the same time.
        engine: The open engine of this process; None where the host answers no LLM calls.
        open_site: Opens what rollouts need in this process.
    """

    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    directory: Path
    concurrency: int
    engine: Engine | None
    open_site: Callable[[], AbstractAsyncContextManager[RolloutSite]]


class Executor(ABC):
    """Executes the rollouts of one run. All methods but `open` are called while it is open.

    Groups, policy versions, records and the run directory stay with the process that submits.

    Attributes:
        notes: Sentences for the user, known once it is open.
        metrics: Where the metrics of all rollouts are served, once it is open; None if nowhere.
    """

    notes: Sequence[str] = ()
    metrics: MetricsAddress | None = None

    @abstractmethod
    def open(self, run: ExecutorRun) -> AbstractAsyncContextManager[None]:
        """Open what executes rollouts. Leaving closes it, after all submitted rollouts have ended.

        Raises:
            SweError: It cannot be opened.
        """

    @property
    @abstractmethod
    def capacity(self) -> int | None:
        """Return how many rollouts can run at the same time now; None for no limit of its own."""

    @abstractmethod
    async def submit(
        self, request: RolloutRequest, observer: Observer, commit: Commit, agent: AgentSpec | None = None
    ) -> None:
        """Run one rollout and commit it exactly once, however it ends.

        Before `commit` is called, the rollout's folder is complete and on disk. What it was copied from is
        kept until `commit` has returned. Cancellation ends the rollout, and commits it as cancelled.

        Args:
            observer: Receives the start, the phases and the turns. `commit` announces the end. From another
                process, a turn has no messages, no reply and no ids, but the number of ids in its usage, and
                their versions.
            agent: Runs in place of the run's agent. Only an executor of this process can do this.

        Raises:
            OSError: The run directory cannot be written.
            SweError: No rollout can be executed any more.
        """

    async def recover(  # noqa: B027 (most executors keep nothing)
        self, commit: Commit, finished: Collection[str], again: Collection[Outcome]
    ) -> None:
        """Commit the rollouts that finished for this run directory and were never committed.

        Called once, before any `submit`.

        Args:
            finished: Ids of the rollouts that were committed.
            again: Outcomes of rollouts to forget instead, so that they run again.
        """

    @abstractmethod
    def cancel(self, rollout_id: str, why: str) -> None:
        """End a running rollout: close its sandbox at once, and commit it as cancelled for this reason.

        A rollout that has its outcome keeps it. The first reason counts.
        """

    @abstractmethod
    def set_version(self, version: int) -> None:
        """Set the policy version of all ids from now on; see `Engine.set_policy_version`.

        An engine elsewhere may hear of it late: its ids then carry an older version, never a newer one.
        """

    @abstractmethod
    async def take_out(self, url: str) -> Collection[str]:
        """Give no more rollouts to the server of `url`; see `Engine.take_out`."""

    @abstractmethod
    def put_in(self, url: str) -> None:
        """Give rollouts to the server of `url` again; see `Engine.put_in`."""
