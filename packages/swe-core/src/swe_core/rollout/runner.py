"""Runner: runs many rollouts, notifies observers, and records each rollout, also on cancellation."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import anyio

from swe_core.api.agent import AgentSpec
from swe_core.api.contracts import calling, class_of
from swe_core.api.engine import Engine
from swe_core.api.executor import Executor
from swe_core.api.records import Failure, Outcome, Rollout
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import PluginError, RunStopped, SweError, sentence
from swe_core.rollout.equal_errors import EqualErrors
from swe_core.rollout.observers import Observers
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.plural import counted
from swe_core.system.printable import one_line

logger = logging.getLogger(__name__)

_MESSAGE = 300
"""Characters of a message that ends a run."""


class Runner:
    """Runs the rollouts of one run; see `swe_core.api.worker.RolloutRunner`.

    Args:
        executor: Executes the rollouts; it is open.
        engine: The run's engine; None where the host answers no LLM calls.
        observers: Notified of each event: the display, the plugins.
        max_errors: Number of equal errors without a verdict between them that ends `run_all`; 0 is no limit.
        shape: Returns the shaped reward of a rollout with a verdict, from the record and the grader's reward.
            A `SweError` of it stops the run.
    """

    def __init__(
        self,
        requests: Sequence[RolloutRequest],
        executor: Executor,
        engine: Engine | None,
        store: RunDirectory,
        observers: Sequence[Observer],
        concurrency: int,
        max_errors: int = 0,
        shape: Callable[[Rollout, float], float] = lambda rollout, reward: reward,
    ) -> None:
        self.requests = requests
        self.store = store
        self.concurrency = concurrency
        self._max_errors = max_errors
        self._shape = shape
        self.engine = engine
        self._executor = executor
        self._observer = Observers(observers)

    def observe(self, observer: Observer) -> None:
        self._observer.add(observer)

    async def run_all(self) -> None:
        finished = self.store.finished()
        left = [request for request in self.requests if request.id not in finished]
        waiting, unstarted = iter(left), len(left)
        errors = EqualErrors(self._max_errors, len({request.task.instance_id for request in left}))

        async def work() -> None:
            nonlocal unstarted
            for request in waiting:
                unstarted -= 1
                rollout = (await self.run(request)).rollout
                equal = errors.add(rollout)
                if equal and unstarted:  # else a stop saves nothing, and the rollouts that run may succeed
                    raise RunStopped(self._stopped(rollout, equal))

        try:
            async with anyio.create_task_group() as group:
                for _ in range(min(self.concurrency, len(left))):
                    group.start_soon(work)
        except ExceptionGroup as problems:  # the first one cancelled the others
            raise problems.exceptions[0] from None

    async def run(self, request: RolloutRequest, agent: AgentSpec | None = None) -> FinishedRollout:
        finished: list[FinishedRollout] = []
        stopped: list[RunStopped] = []

        def commit(rollout: FinishedRollout) -> None:
            if finished or stopped:
                raise PluginError(f"the executor {class_of(self._executor)} committed {request.id!r} twice")
            try:
                finished.append(replace(rollout, rollout=self._finish(rollout.rollout)))
            except RunStopped as error:  # raised once the executor has left everything in order
                stopped.append(error)

        who = f"the executor {class_of(self._executor)}"
        with self._writing(), calling(PluginError, who, "submit", but=OSError):  # an OSError is the folder's
            await self._executor.submit(request, self._observer, commit, agent)
        if self.engine is not None and self.engine.unfit is not None:
            raise SweError(self.engine.unfit)
        if stopped:
            raise stopped[0]
        if not finished:
            raise PluginError(
                f"the executor {class_of(self._executor)} returned from submit() without a call of commit"
            )
        return finished[0]

    async def recover(self, again: Collection[Outcome] = ()) -> None:
        """Record the rollouts that earlier processes finished: those set aside, and those that nodes kept.

        Args:
            again: Outcomes of rollouts that are to run again, so they are not recorded.

        Raises:
            RunStopped: A reward cannot be shaped; its rollout stays set aside.
            SweError: The run directory cannot be read or written.
        """
        for rollout in self.store.unshaped():
            self._finish(rollout)
            with self._writing():
                self.store.take_back(rollout.id)
        with self._writing():
            await self._executor.recover(
                lambda kept: self._finish(kept.rollout), set(self.store.finished()), again
            )

    def cancel(self, rollout_id: str, why: str) -> None:
        """See `RolloutRunner.cancel`."""
        self._executor.cancel(rollout_id, why)

    def set_policy_version(self, version: int) -> None:
        """See `RolloutRunner.set_policy_version`."""
        self._executor.set_version(version)

    async def take_out(self, url: str) -> Collection[str]:
        """See `RolloutRunner.take_out`."""
        return await self._executor.take_out(url)

    def put_in(self, url: str) -> None:
        """See `RolloutRunner.put_in`."""
        self._executor.put_in(url)

    def _stopped(self, rollout: Rollout, tasks: Sequence[str]) -> str:
        failure = cast(Failure, rollout.failure)
        resume = shlex.join(["swe-core", "run", "--resume", str(self.store.path), "--retry-errors"])
        return (
            f"the run was stopped, because {counted(len(tasks), 'rollout')} of "
            f"{counted(len(set(tasks)), 'task')} ended in the same error and none got a verdict meanwhile "
            f"({failure.boundary}: {one_line(failure.message, _MESSAGE)}); correct the cause and "
            f"continue with `{resume}`; --max-errors 0 never stops a run"
        )

    def _finish(self, rollout: Rollout) -> Rollout:
        """Shape the reward of a rollout and record it. If it cannot be shaped, set the rollout aside.

        Its record would have a wrong reward, and as an error it would run again: the finished work would be
        lost.
        """
        with self._writing():
            if rollout.reward is not None:
                try:
                    reward = self._shape(rollout, rollout.reward)
                except SweError as error:
                    self.store.set_aside(rollout)
                    resume = shlex.join(["swe-core", "run", "--resume", str(self.store.path)])
                    raise RunStopped(
                        f"{self.store.redactor.text(sentence(error))}; the run was stopped, and the "
                        f"verdict of this rollout is kept: correct the plugin and continue with `{resume}`"
                    ) from error
                rollout = rollout.model_copy(update={"reward": reward})
            self.store.append(rollout)
        self._observer.finished(rollout)
        return rollout

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SweError(
                f"cannot write to the run directory {str(self.store.path)!r}: "
                f"{error.strerror or error}; finished rollouts are kept, and --resume continues the run"
            ) from error
