"""GroupScheduler: runs groups of attempts, from the first rollout to rows in the journal."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import anyio
import numpy as np
import orjson
from anyio.to_thread import run_sync

from swe_core.api.records import Rollout
from swe_core.api.worker import FinishedRollout, RolloutRunner
from swe_core.errors import ConfigError, SweError
from swe_core.rollout.training_records import GROUPS_FILE, ClosedGroup, append_lines
from swe_core.system.plural import counted
from swe_trainer_trl.journal.groups import Assessed, Member, assess, closed_group
from swe_trainer_trl.journal.journal import Journal, OpenGroup
from swe_trainer_trl.rollouts.messages import ENGINE_LOST, FeedOptions
from swe_trainer_trl.rollouts.metrics import RolloutMetrics, most_frequent
from swe_trainer_trl.rollouts.staleness import StalenessCheck

logger = logging.getLogger(__name__)

_LOOK = 0.5
"""Seconds between two checks of a server on which a rollout failed."""
_ALIKE = 64
"""Consecutive groups without a spread of rewards, in at least two epochs, after which the run ends."""


class GroupScheduler:
    """Runs groups until it is cancelled.

    The number of a group determines its task. Rollouts start in the order of their groups, limited by the
    runner's concurrency, so the oldest group tends to be complete first. The trainer limits the number of
    groups in flight: a new group waits until the trainer has taken an older one.

    Args:
        closed: Called after a group is closed in the journal.
        dead: Returns whether the policy's server is dead; called in a thread.
    """

    def __init__(
        self,
        options: FeedOptions,
        journal: Journal,
        runner: RolloutRunner,
        freshness: StalenessCheck,
        tally: RolloutMetrics,
        closed: Callable[[int], None],
        dead: Callable[[], bool],
    ) -> None:
        self._options = options
        self._journal = journal
        self._runner = runner
        self._freshness = freshness
        self._tally = tally
        self._closed = closed
        self._dead = dead
        self._server = anyio.Event()
        self._server.set()
        self._losses = 0
        self._slots = anyio.CapacityLimiter(runner.concurrency)
        self._templates = {request.task.instance_id: request for request in runner.requests}
        self._earlier = {rollout.id: rollout for rollout in runner.store.rollouts()}
        self._in_flight: set[int] = set()
        self._room = anyio.Condition()
        self._failures: list[str] = []
        self._without_verdict = 0
        self._alike = 0
        self._lost: Counter[str] = Counter()
        self._without_tokens = 0
        self._unrecorded = False

    async def earlier(self) -> Sequence[OpenGroup]:
        """Return the open groups of an earlier process, which `run` resumes.

        Groups that wait for the trainer count as in flight too. Call this before the first `taken`.

        Raises:
            SweError: The journal cannot be read.
            ConfigError: The task of a group is no longer among the tasks.
        """
        groups = await run_sync(self._journal.unfinished)
        for group in groups:
            self._refuse_unknown(group)
        self._in_flight.update(group.id for group in groups)
        self._in_flight.update(await run_sync(self._waiting))
        return groups

    async def run(self, groups: Sequence[OpenGroup]) -> None:
        """Resume `groups`, then begin new ones, until cancelled.

        Raises:
            SweError: The journal or the run directory cannot be written, no rollout gets a verdict, or no
                token can be trained.
        """
        async with anyio.create_task_group() as tasks:
            for group in groups:
                tasks.start_soon(self._group, group)
            begun = await run_sync(self._journal.groups_begun)
            for task_id in tasks_from(begun, list(self._templates), self._options):
                await self._wait_for_room()
                size = self._options.group_size
                number = await run_sync(self._journal.open_group, task_id, size)
                self._in_flight.add(number)
                tasks.start_soon(self._group, OpenGroup(number, task_id, size, ()))

    async def taken(self, group: int) -> None:
        """Make room for another group: the trainer has taken this one, or it has no rows."""
        async with self._room:
            self._in_flight.discard(group)
            self._room.notify_all()

    def server_lost(self) -> None:
        """Handle the server's death: its attempts run again after its recovery."""
        self._losses += 1
        if self._server.is_set():
            self._server = anyio.Event()
        self._freshness.server_lost()

    def server_back(self) -> None:
        """Handle the server's recovery."""
        self._server.set()

    def _waiting(self) -> set[int]:
        """Return the groups that wait for the trainer, with one at a time in memory."""
        found, after = set(), -1
        while ready := self._journal.ready(after, limit=1):
            found.add(ready[0].id)
            after = ready[0].closed
        return found

    async def _wait_for_room(self) -> None:
        began = time.monotonic()
        async with self._room:
            while len(self._in_flight) >= self._options.groups_ahead:
                await self._room.wait()
        self._tally.waited(time.monotonic() - began)

    def _refuse_unknown(self, group: OpenGroup) -> None:
        if group.task_id not in self._templates:
            raise ConfigError(
                f"the resumed run has an open group of the task {group.task_id!r}, which is not among its "
                "tasks: give the same --tasks"
            )

    async def _group(self, group: OpenGroup) -> None:
        members = list(group.members)
        there = {member.attempt for member in members}
        failures: list[str] = []
        async with anyio.create_task_group() as tasks:
            for attempt in range(group.size):
                if attempt not in there:
                    tasks.start_soon(self._attempt, group, attempt, members, failures)
        await self._close(group, members, failures)

    async def _attempt(
        self, group: OpenGroup, attempt: int, members: list[Member], failures: list[str]
    ) -> None:
        """Run one attempt; add it to `members` after its journal entry, and its failure to `failures`."""
        first = name = f"{group.task_id}-g{group.id}-{attempt}"
        for again in itertools.count(2):
            earlier = self._earlier.get(name)
            if earlier is None:
                finished, void = await self._tried(name, group.task_id, attempt)
            else:  # an earlier process finished it, but died before its journal entry
                finished = await run_sync(self._from_disk, earlier)
                void = _was_interrupted(earlier) or _failed_at_the_engine(earlier)
            if not void:
                break
            name = f"{first}-{again}"
        rollout = finished.rollout
        if rollout.failure is not None:
            failures.append(f"{rollout.failure.boundary}: {rollout.failure.message}")
        with anyio.CancelScope(shield=True):  # finished work must survive a stop
            member = await run_sync(self._member, finished)
            await run_sync(self._journal.add_member, group.id, member)
        members.append(member)

    async def _tried(self, name: str, task_id: str, attempt: int) -> tuple[FinishedRollout, bool]:
        """Return a rollout, and whether the death of the policy's server made it void."""
        async with self._slots:
            while not self._server.is_set():  # it may die again before this task resumes
                await self._server.wait()
            losses = self._losses
            finished = await self._roll_out(name, task_id, attempt)
        if not _failed_at_the_engine(finished.rollout):
            return finished, finished.rollout.cancelled_as == ENGINE_LOST
        void = False
        while self._losses == losses and await run_sync(self._dead):  # the trainer will report the death
            void = True
            await anyio.sleep(_LOOK)
        return finished, void or self._losses != losses

    async def _roll_out(self, name: str, task_id: str, attempt: int) -> FinishedRollout:
        template = self._templates[task_id]
        spec = template.spec.model_copy(update={"labels": {**template.spec.labels, "swe-core.rollout": name}})
        request = template.model_copy(update={"id": name, "attempt": attempt, "spec": spec})
        finished = await self._runner.run(request)
        rollout = finished.rollout
        self._tally.rollout(rollout)
        if rollout.reward is not None and rollout.ledger is not None:
            self._lost.update(rollout.ledger.dropped)
        return finished

    def _from_disk(self, rollout: Rollout) -> FinishedRollout:
        scored = rollout.reward is not None
        return FinishedRollout(rollout, self._runner.store.chains(rollout.id) if scored else ())

    def _member(self, finished: FinishedRollout) -> Member:
        rollout, chains = finished.rollout, finished.chains
        versions = np.concatenate([np.empty(0, np.int32), *(c.versions[c.completion_mask] for c in chains)])
        updates = [self._freshness.update_of(version) for version in np.unique(versions).tolist()]
        return Member(
            rollout.id,
            rollout.attempt,
            rollout.reward,
            tuple(chains),
            min(updates, default=None),
            max(updates, default=None),
        )

    async def _close(self, group: OpenGroup, members: list[Member], failures: list[str]) -> None:
        """Hand the rows of all attempts to the trainer, or record why there are none."""
        options = self._options
        assessed = assess(
            members,
            update=self._freshness.update,
            max_staleness=options.max_staleness,
            min_scored=options.min_scored,
            keep_without_spread=options.keep_without_spread,
        )
        closed = closed_group(group.id, group.task_id, members, assessed)
        await run_sync(self._write, closed, assessed)
        self._tally.group(assessed)
        rewards = " ".join("-" if member.reward is None else f"{member.reward:g}" for member in members)
        what = counted(len(assessed.rows), "row") if assessed.rows else f"skipped ({assessed.skipped})"
        logger.info("group %d, %s: rewards %s, %s", group.id, group.task_id, rewards, what)
        if not assessed.rows:
            await self.taken(group.id)
        self._closed(group.id)
        self._give_up_if_hopeless(members, failures)
        self._give_up_if_alike(assessed.skipped)

    def _write(self, group: ClosedGroup, assessed: Assessed) -> None:
        """Write a closed group to both files; in one thread, so that no cancellation comes in between.

        First its line: after a kill in between, the group is closed again and has another line.
        """
        self._record(group)
        self._journal.close_group(group.group, assessed)

    def _record(self, group: ClosedGroup) -> None:
        """Append a group to `groups.jsonl`. No training needs the file, so a failure is a warning."""
        line = orjson.dumps(group.model_dump(mode="json"))
        try:
            append_lines(self._runner.store.path / GROUPS_FILE, [line])
        except OSError as error:
            if not self._unrecorded:
                logger.warning("%s lacks groups: %s", GROUPS_FILE, error.strerror or error)
            self._unrecorded = True

    def _give_up_if_hopeless(self, members: list[Member], failures: list[str]) -> None:
        scored = [member for member in members if member.reward is not None]
        if scored:
            self._failures.clear()
            self._without_verdict = 0
            self._give_up_if_untrainable(scored)
            return
        if not failures:  # all attempts were cancelled, which shows nothing
            return
        self._failures += failures
        self._without_verdict += 1
        if self._without_verdict >= self._options.give_up_after:
            raise SweError(
                f"no attempt of the last {self._without_verdict} groups has a verdict, so nothing can be "
                f"trained; most often it was {most_frequent(self._failures)}"
            )

    def _give_up_if_untrainable(self, scored: list[Member]) -> None:
        """Give up if no group has a trainable token. Unlike a missing spread, this does not change later."""
        if any(member.oldest is not None for member in scored):
            self._lost.clear()
            self._without_tokens = 0
            return
        self._without_tokens += 1
        if self._without_tokens >= self._options.give_up_after:
            lost = ", ".join(f"{count} {reason}" for reason, count in self._lost.items() if count)
            raise SweError(
                f"no sampled token of the last {self._without_tokens} groups can be trained "
                f"({f'dropped were {lost}' if lost else 'nothing was sampled'}): see why in the rollouts' "
                "ledgers, and check the server that they come from"
            )

    def _give_up_if_alike(self, skipped: str | None) -> None:
        """Give up if the policy always or never succeeds: it would run for ever without learning."""
        self._alike = self._alike + 1 if skipped == "no_spread" else 0
        if self._alike >= max(_ALIKE, 2 * len(self._templates)):
            raise SweError(
                f"in each of the last {self._alike} groups all attempts had the same reward, so nothing "
                "could be trained: take other tasks, raise --attempts, or set worker.trl.no_spread=keep"
            )


def groups_to_keep_busy(concurrency: int, group_size: int, step_rows: int, max_staleness: int) -> int:
    """Return the default number of groups ahead of the trainer.

    It keeps all slots busy, and is at least what the trainer can take before groups are stale (TRL's bound).

    A group is open until its slowest attempt ends; the slots of its other attempts serve other groups by
    then. The slowest of n attempts with exponential durations takes H_n (the n-th harmonic number) times the
    mean duration, so H_n times more groups are open than fit into the slots.

    Args:
        concurrency: Maximum number of concurrent rollouts.
        step_rows: Rows of an optimizer step.
        max_staleness: How many updates a policy may be behind.
    """
    slowest = sum(1 / place for place in range(1, group_size + 1))
    busy = math.ceil(concurrency * slowest / group_size)
    fresh = math.ceil(max(1, max_staleness) * step_rows / group_size)
    return max(2, busy, fresh)


def tasks_from(begun: int, names: Sequence[str], options: FeedOptions) -> Iterator[str]:
    """Yield the tasks of the groups from number `begun`, without end: each of `names` once an epoch."""
    for number in itertools.count(begun):
        epoch, place = divmod(number, len(names))
        if place == 0 or number == begun:
            order = list(names)
            if options.shuffle:
                random.Random(f"{options.seed}:{epoch}").shuffle(order)
        yield order[place]


def _was_interrupted(rollout: Rollout) -> bool:
    return rollout.outcome == "cancelled" and rollout.cancelled_as in (None, ENGINE_LOST)


def _failed_at_the_engine(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.boundary == "engine"
