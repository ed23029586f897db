"""A training in virtual time: the package's own feeder, and rollouts with nothing but a duration.

The decisions are real: `RolloutFeeder` with its scheduler, staleness check and metrics. The rest is a
simulation: rollouts, whose durations follow a law and whose verdicts are random; the journal, a dictionary;
and the trainer, which takes rows in the order in which groups close, drops stale ones by TRL's rule, takes
some time for a step, and then announces the next version.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import anyio
from _virtual_time import run

from swe_core.api.engine import Usage
from swe_core.api.limits import Limits
from swe_core.api.records import Outcome, Rollout, Turn, TurnTokens
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.api.sandbox import SandboxSpec
from swe_core.api.task import Task
from swe_core.api.worker import FinishedRollout
from swe_core.tokens.chains import chains_of
from swe_trainer_trl.journal.groups import Assessed, Row
from swe_trainer_trl.journal.journal import OpenGroup, ReadyGroup
from swe_trainer_trl.rollouts import group_scheduler, metrics, staleness, worker
from swe_trainer_trl.rollouts.group_scheduler import groups_to_keep_busy
from swe_trainer_trl.rollouts.messages import (
    Closed,
    Command,
    FeedOptions,
    Metrics,
    Report,
    Stop,
    Taken,
    Version,
)
from swe_trainer_trl.rollouts.staleness import STALE
from swe_trainer_trl.rollouts.worker import RolloutFeeder

CALLS = 20
"""LLM calls of a rollout; its first ids come with the first one."""
LONGEST = Limits().agent
"""Seconds after which a rollout is ended, without a verdict."""
LAWS: Mapping[str, Callable[[random.Random], float]] = {
    "lognormal": lambda draw: draw.lognormvariate(math.log(240), 1.0),
    "pareto": lambda draw: 120 * draw.paretovariate(1.5),
}
"""How long a rollout would take, seconds. Means before the limit: 396 and 360; medians: 240 and 190."""
TASKS = 50
_NEVER = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a training is set to.

    Args:
        group: Attempts in a group.
        slots: Rollouts at once.
        rows: Of an optimizer step.
        step_seconds: How long a step takes.
    """

    group: int = 8
    slots: int = 64
    rows: int = 16
    step_seconds: float = 60.0

    def chosen(self, max_staleness: int) -> int:
        """Groups ahead of the trainer, as the launcher chooses them."""
        return groups_to_keep_busy(self.slots, self.group, self.rows, max_staleness)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a training took.

    Args:
        sandbox_seconds: Of all rollouts, also of those that still ran at the end.
        seconds: From its begin to the end of its last step.
        cancelled: Rollouts that were cancelled as stale.
        saved: How much longer these would have run, which only a simulation can know, seconds.
        estimated: The same by `Tally`.
        stale: Rollouts that ran to their end and were too old then, for `assess` or for the trainer.
        groups: Groups that the trainer took rows of.
    """

    sandbox_seconds: float
    seconds: float
    cancelled: int
    saved: float
    estimated: float
    stale: int
    groups: int


def simulate(
    law: str,
    max_staleness: int,
    seed: int,
    steps: int,
    *,
    setting: Setting | None = None,
    ahead: int | None = None,
    cancels: bool = True,
) -> Spent:
    """One training of `steps` optimizer steps.

    Args:
        law: Of `LAWS`. A rollout has the same duration in every simulation with the same law and seed.
        ahead: Groups ahead of the trainer; None is what the launcher chooses.
        cancels: Whether stale rollouts are cancelled while they run; else they run to their end.
    """
    return run(_World(law, max_staleness, seed, setting or Setting(), ahead, cancels).train, steps)


class _Rollouts:
    """In the place of `Runner` and of its store."""

    def __init__(self, law: str, cancels: bool, seed: int, slots: int) -> None:
        self.concurrency = slots
        self.requests = [_request(f"task-{number}") for number in range(TASKS)]
        self.store = self.engine = self
        self.path = Path()
        self.version = 0
        self.spent = 0.0
        self.saved = 0.0
        self._duration = LAWS[law]
        self._cancels = cancels
        self._seed = seed
        self._observers: list[Observer] = []
        self._running: dict[str, tuple[anyio.CancelScope, float]] = {}

    def set_policy_version(self, version: int) -> None:
        self.version = version

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    def rollouts(self) -> list[Rollout]:
        return []

    async def run(self, request: RolloutRequest) -> FinishedRollout:
        draw = random.Random(f"{self._seed}:{request.id}")
        wanted, resolved = self._duration(draw), draw.random() < 0.5
        seconds, began = min(wanted, LONGEST), anyio.current_time()
        outcome: Outcome = "cancelled"
        turns: list[Turn] = []
        with anyio.CancelScope() as scope:
            self._running[request.id] = scope, began + seconds
            for observer in self._observers:
                observer.started(request)
            try:
                await anyio.sleep(seconds / CALLS)
                turn = _turn(self.version)
                turns.append(turn)
                for observer in self._observers:
                    observer.turn(request.id, turn)
                await anyio.sleep(seconds - seconds / CALLS)
                outcome = "error" if wanted > LONGEST else "resolved" if resolved else "unresolved"
            finally:
                del self._running[request.id]
                self.spent += anyio.current_time() - began
        rollout = _record(request, outcome, anyio.current_time() - began)
        for observer in self._observers:
            observer.finished(rollout)
        return FinishedRollout(rollout, chains_of(turns) if rollout.reward is not None else ())

    def cancel(self, rollout_id: str, why: str) -> None:
        scope, ends = self._running[rollout_id]
        if self._cancels:
            self.saved += ends - anyio.current_time()
            scope.cancel()


@dataclass(slots=True)
class _Memory:
    """In the place of `Journal`."""

    rows: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    stale: int = 0
    begun: int = 0

    def ready(self, after: int = -1, limit: int | None = None) -> list[ReadyGroup]:
        return []

    def unfinished(self) -> list[OpenGroup]:
        return []

    def groups_begun(self) -> int:
        return self.begun

    def open_group(self, task_id: str, size: int) -> int:
        self.begun += 1
        return self.begun - 1

    def add_member(self, group: int, member: object) -> None:
        """Its rows come with the group."""

    def close_group(self, group: int, assessed: Assessed) -> None:
        self.rows[group] = assessed.rows
        self.stale += len(assessed.stale)


class _World:
    """One training."""

    def __init__(
        self, law: str, max_staleness: int, seed: int, setting: Setting, ahead: int | None, cancels: bool
    ) -> None:
        self._max_staleness = max_staleness
        self._setting = setting
        self._rollouts = _Rollouts(law, cancels, seed, setting.slots)
        self._journal = _Memory()
        self._options = FeedOptions(
            group_size=setting.group,
            max_staleness=max_staleness,
            min_scored=2,
            keep_without_spread=False,
            give_up_after=4,
            groups_ahead=setting.chosen(max_staleness) if ahead is None else ahead,
            shuffle=True,
            seed=seed,
        )
        self._commands, self._heard = anyio.create_memory_object_stream[Command](math.inf)
        self._reports, self._closed = anyio.create_memory_object_stream[int](math.inf)
        self._values: Counter[str] = Counter()

    async def train(self, steps: int) -> Spent:
        rollouts = self._rollouts
        with _virtual():
            feed = RolloutFeeder(
                self._options, self._journal, 1, {1: 1}, self._heard, (), self._hear, lambda url: False
            )
            with self._commands, self._heard, self._reports, self._closed:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(feed.run, rollouts)
                    groups, dropped = await self._steps(steps)
                    self._commands.send_nowait(Stop())
        return Spent(
            rollouts.spent,
            anyio.current_time(),
            int(self._values["staleness/cancelled_total"]),
            rollouts.saved,
            self._values["staleness/saved_sandbox_seconds_total"],
            self._journal.stale + dropped,
            groups,
        )

    async def _steps(self, steps: int) -> tuple[int, int]:
        """What the trainer does. Returns groups that it took rows of, and rows that it dropped as stale."""
        waiting: deque[Row] = deque()
        version = groups = dropped = 0
        for version in range(1, steps + 1):
            trained = 0
            while trained < self._setting.rows:
                if not waiting:
                    number = await self._closed.receive()
                    waiting += self._journal.rows.pop(number)
                    groups += bool(waiting)
                    continue
                stale = version - waiting.popleft().update > self._max_staleness
                dropped, trained = dropped + stale, trained + (not stale)
                if not waiting:
                    self._commands.send_nowait(Taken(group=number))
            await anyio.sleep(self._setting.step_seconds)
            self._commands.send_nowait(Version(version=version + 1, updates=version + 1))
        return groups, dropped

    def _hear(self, report: Report) -> None:
        if isinstance(report, Closed):
            self._reports.send_nowait(report.group)
        elif isinstance(report, Metrics):
            self._values.update(
                {name: value for name, value in report.values.items() if isinstance(value, float)}
            )


@contextmanager
def _virtual() -> Iterator[None]:
    """Let the package's modules read the virtual clock, and do at once what they would leave to a thread."""
    clock = SimpleNamespace(monotonic=anyio.current_time)
    with ExitStack() as stack:
        for module in (staleness, group_scheduler, metrics):
            stack.enter_context(patch.object(module, "time", clock))
        stack.enter_context(patch.object(group_scheduler, "run_sync", _at_once))
        stack.enter_context(patch.object(group_scheduler, "append_lines"))  # a simulation keeps no files
        for name in ("_BEAT", "_METRICS"):  # what it measured, it also says at the end
            stack.enter_context(patch.object(worker, name, math.inf))
        yield


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _request(task_id: str) -> RolloutRequest:
    task = Task(
        instance_id=task_id,
        repo="simulated",
        base_commit="0",
        problem_statement="none",
        patch="",
        test_patch="",
        fail_to_pass=("test",),
        pass_to_pass=(),
        test_command="true",
    )
    return RolloutRequest(
        id=task_id,
        task=task,
        attempt=0,
        agent="simulated",
        sandbox="simulated",
        engine="simulated",
        model="",
        spec=SandboxSpec(),
        limits=Limits(),
    )


def _turn(version: int) -> Turn:
    """A call that sampled one id."""
    tokens = TurnTokens(
        base=None,
        prompt=[0],
        completion=[1],
        logprobs=[-1.0],
        versions=[(version, 1)],
        rendered="full",
        cause="start",
    )
    return Turn(
        index=0, started_at=_NEVER, seconds=0, kept=0, messages=[], params={}, reply={}, tokens=tokens
    )


def _record(request: RolloutRequest, outcome: Outcome, seconds: float) -> Rollout:
    rewards = {"resolved": 1.0, "unresolved": 0.0}
    return Rollout(
        id=request.id,
        task_id=request.task.instance_id,
        attempt=request.attempt,
        agent=request.agent,
        sandbox=request.sandbox,
        engine=request.engine,
        model=request.model,
        outcome=outcome,
        cancelled_as=STALE if outcome == "cancelled" else None,
        reward=rewards.get(outcome),
        usage=Usage(),
        started_at=_NEVER,
        seconds=seconds,
    )
