"""RolloutFeeder: the worker of the rollout process, which feeds the trainer and executes its commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping

import anyio
from anyio.to_thread import run_sync

from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.worker import RolloutRunner
from swe_core.errors import ConfigError
from swe_trainer_trl.journal.journal import BegunEvaluation, Journal
from swe_trainer_trl.rollouts.attempts import Attempts
from swe_trainer_trl.rollouts.evaluator import Evaluator
from swe_trainer_trl.rollouts.group_scheduler import GroupScheduler
from swe_trainer_trl.rollouts.messages import (
    Back,
    Beat,
    Closed,
    Command,
    Evaluate,
    FeedOptions,
    Finish,
    Lost,
    Metrics,
    Report,
    Stop,
    Taken,
    Version,
)
from swe_trainer_trl.rollouts.metrics import RolloutMetrics
from swe_trainer_trl.rollouts.staleness import StalenessCheck

_BEAT = 1.0
"""Seconds between two heartbeats."""
_METRICS = 5.0
"""Seconds between two reports of metrics."""


class RolloutFeeder:
    """Runs groups of attempts until the trainer stops it or ends.

    Args:
        version: Current policy version.
        updates: Version → number of updates of its weights, for all earlier versions.
        commands: Commands of the trainer. Their end ends the run.
        servers: URLs of the policy's servers.
        report: Sends a message to the trainer; called in the event loop.
        dead: Returns whether the server of a URL is dead; called in a thread.
        held_out: Ids of the tasks to evaluate on. The others are trained on.
    """

    def __init__(
        self,
        options: FeedOptions,
        journal: Journal,
        version: int,
        updates: Mapping[int, int],
        commands: AsyncIterator[Command],
        servers: Collection[str],
        report: Callable[[Report], None],
        dead: Callable[[str], bool],
        held_out: Collection[str] = (),
    ) -> None:
        self._options = options
        self._journal = journal
        self._version = version
        self._updates = updates
        self._commands = commands
        self._servers = servers
        self._report = report
        self._dead = dead
        self._held_out = frozenset(held_out)
        self._tally = RolloutMetrics()

    async def run(self, runner: RolloutRunner) -> None:
        """See `swe_core.api.worker.RolloutWorker`.

        Raises:
            SweError: The journal or the run directory cannot be written, or no rollout gets a verdict.
        """
        if runner.engine is None:
            raise ConfigError(
                "a policy is trained on the LLM calls that this host answers, and here it answers none: "
                "choose an agent that makes some, and leave out --mode black-box"
            )
        runner.set_policy_version(self._version)
        limit = self._options.max_staleness
        freshness = StalenessCheck(runner, self._version, self._updates, limit, self._tally)
        runner.observe(freshness)
        options, run = self._options, runner.store.path
        attempts = Attempts(runner, self._tally, self._servers, self._dead, summaries=options.summaries)
        apart: tuple[list[RolloutRequest], list[RolloutRequest]] = [], []
        for request in runner.requests:
            apart[request.task.instance_id in self._held_out].append(request)
        schedule = GroupScheduler(
            options,
            self._journal,
            attempts,
            apart[0],
            run,
            freshness,
            self._tally,
            lambda group: self._report(Closed(group=group)),
        )
        evaluator = Evaluator(apart[1], options.eval_attempts, attempts, self._journal, run, self._report)
        open_groups = await schedule.earlier()  # before any command, which may refer to these groups
        evaluations = await run_sync(self._journal.open_evaluations) if apart[1] else []
        groups = anyio.CancelScope()

        async def train() -> None:
            with groups:
                await schedule.run(open_groups)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._beat)
                tasks.start_soon(self._measure, freshness)
                for evaluation in evaluations:
                    tasks.start_soon(evaluator.evaluate, evaluation)
                tasks.start_soon(train)
                async for command in self._commands:
                    if isinstance(command, Stop):
                        break
                    if isinstance(command, Taken):
                        await schedule.taken(command.group)
                    elif isinstance(command, Evaluate):
                        fields = command.id, command.step, command.round, command.version
                        tasks.start_soon(evaluator.evaluate, BegunEvaluation(*fields))
                    elif isinstance(command, Finish):
                        groups.cancel()
                    elif isinstance(command, Lost):
                        on_it = await runner.take_out(command.url)
                        freshness.server_lost(on_it if attempts.server_lost(command.url) else None)
                    elif isinstance(command, Back):
                        runner.put_in(command.url)
                        attempts.server_back(command.url)
                    elif isinstance(command, Version):
                        runner.set_policy_version(command.version)
                        freshness.advance(command.version, command.updates)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as errors:  # the first error cancelled the other tasks
            raise _first(errors) from None
        finally:
            self._report(Metrics(values=self._tally.take(0)))

    async def _beat(self) -> None:
        while True:
            self._report(Beat())
            await anyio.sleep(_BEAT)

    async def _measure(self, freshness: StalenessCheck) -> None:
        while True:
            await anyio.sleep(_METRICS)
            self._report(Metrics(values=self._tally.take(len(freshness))))


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """Return the first error inside nested exception groups."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
