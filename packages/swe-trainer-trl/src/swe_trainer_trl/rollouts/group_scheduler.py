"""Schedule: groups of attempts, one after the other, from the first rollout to rows in the journal."""

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
from anyio.to_thread import run_sync

from swe_core.api.records import Rollout
from swe_core.api.worker import FinishedRollout, RolloutRunner
from swe_core.errors import ConfigError, SweError
from swe_trainer_trl.journal.groups import Member, assess
from swe_trainer_trl.journal.journal import Journal, OpenGroup
from swe_trainer_trl.rollouts.messages import ENGINE_LOST, FeedOptions
from swe_trainer_trl.rollouts.metrics import Tally, most_frequent
from swe_trainer_trl.rollouts.staleness import Freshness

logger = logging.getLogger(__name__)

_LOOK = 0.5
"""Seconds between two looks at a server on which a rollout failed."""
_ALIKE = 64
"""Groups in a row without a spread of rewards, and at least two epochs of them, after which the run ends."""


class Schedule:
    """The groups of a run, without end.

    A group's number decides its task. Rollouts start in the order of their groups, as many at once as the
    runner allows, so that the first group to be begun tends to be the first to be whole. No more groups are
    in flight than the trainer can take: a new one waits until an older one was taken.

    Args:
        closed: Told when a group is over and in the journal.
        dead: Whether the policy's server is dead; called in a thread.
    """

    def __init__(
        self,
        options: FeedOptions,
        journal: Journal,
        runner: RolloutRunner,
        freshness: Freshness,
        tally: Tally,
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

    async def earlier(self) -> Sequence[OpenGroup]:
        """What an earlier process left: the groups that are open, which `run` goes on with. Those that wait
        for the trainer are in flight too. Called before anything is `taken`, or that would be missed.

        Raises:
            SweError: The journal cannot be read.
            ConfigError: A group's task is not among the tasks any more.
        """
        groups = await run_sync(self._journal.unfinished)
        for group in groups:
            self._refuse_unknown(group)
        self._in_flight.update(group.id for group in groups)
        self._in_flight.update(await run_sync(self._waiting))
        return groups

    async def run(self, groups: Sequence[OpenGroup]) -> None:
        """Go on with `groups`, then begin new ones, until cancelled.

        Raises:
            SweError: The journal or the run directory cannot be written, or nothing gets a verdict, or
                nothing that does can be trained.
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
        """The trainer has taken the group, or it has nothing for it: there is room for another."""
        async with self._room:
            self._in_flight.discard(group)
            self._room.notify_all()

    def server_lost(self) -> None:
        """The policy's server has died: attempts that need it are made again once it is back."""
        self._losses += 1
        if self._server.is_set():
            self._server = anyio.Event()
        self._freshness.server_lost()

    def server_back(self) -> None:
        """It is there again."""
        self._server.set()

    def _waiting(self) -> set[int]:
        """The groups that wait for the trainer; one at a time is in memory."""
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
        """One attempt, which joins `members` once it is in the journal, and its failure `failures`."""
        first = name = f"{group.task_id}-g{group.id}-{attempt}"
        for again in itertools.count(2):
            earlier = self._earlier.get(name)
            if earlier is None:
                finished, void = await self._tried(name, group.task_id, attempt)
            else:  # an earlier process finished it, and did not come to say so
                finished = await run_sync(self._from_disk, earlier)
                void = _was_interrupted(earlier) or _failed_at_the_engine(earlier)
            if not void:
                break
            name = f"{first}-{again}"
        rollout = finished.rollout
        if rollout.failure is not None:
            failures.append(f"{rollout.failure.boundary}: {rollout.failure.message}")
        with anyio.CancelScope(shield=True):  # it is finished: a stop must not lose it now
            member = await run_sync(self._member, finished)
            await run_sync(self._journal.add_member, group.id, member)
        members.append(member)

    async def _tried(self, name: str, task_id: str, attempt: int) -> tuple[FinishedRollout, bool]:
        """A rollout, and whether it is void, because the policy's server died meanwhile."""
        async with self._slots:
            while not self._server.is_set():  # it may be lost again before this task goes on
                await self._server.wait()
            losses = self._losses
            finished = await self._roll_out(name, task_id, attempt)
        if not _failed_at_the_engine(finished.rollout):
            return finished, finished.rollout.cancelled_as == ENGINE_LOST
        void = False
        while self._losses == losses and await run_sync(self._dead):  # of which the trainer will say so
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
        """All attempts are over: hand their rows to the trainer, or keep why there are none."""
        options = self._options
        assessed = assess(
            members,
            update=self._freshness.update,
            max_staleness=options.max_staleness,
            min_scored=options.min_scored,
            keep_without_spread=options.keep_without_spread,
        )
        await run_sync(self._journal.close_group, group.id, assessed)
        self._tally.group(assessed)
        rewards = " ".join("-" if member.reward is None else f"{member.reward:g}" for member in members)
        what = f"{len(assessed.rows)} rows" if assessed.rows else f"skipped ({assessed.skipped})"
        logger.info("group %d, %s: rewards %s, %s", group.id, group.task_id, rewards, what)
        if not assessed.rows:
            await self.taken(group.id)
        self._closed(group.id)
        self._give_up_if_hopeless(members, failures)
        self._give_up_if_alike(assessed.skipped)

    def _give_up_if_hopeless(self, members: list[Member], failures: list[str]) -> None:
        scored = [member for member in members if member.reward is not None]
        if scored:
            self._failures.clear()
            self._without_verdict = 0
            self._give_up_if_untrainable(scored)
            return
        if not failures:  # its attempts were cancelled, which says nothing
            return
        self._failures += failures
        self._without_verdict += 1
        if self._without_verdict >= self._options.give_up_after:
            raise SweError(
                f"no attempt of the last {self._without_verdict} groups has a verdict, so nothing can be "
                f"trained; most often it was {most_frequent(self._failures)}"
            )

    def _give_up_if_untrainable(self, scored: list[Member]) -> None:
        """No spread may come to an end as the policy learns, but not this: no group can teach it."""
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
        """A policy that always or never succeeds learns nothing, and would be rolled out for ever."""
        self._alike = self._alike + 1 if skipped == "no_spread" else 0
        if self._alike >= max(_ALIKE, 2 * len(self._templates)):
            raise SweError(
                f"in each of the last {self._alike} groups all attempts had the same reward, so nothing "
                "could be trained: take other tasks, raise --attempts, or set worker.trl.no_spread=keep"
            )


def groups_to_keep_busy(concurrency: int, group_size: int, step_rows: int, max_staleness: int) -> int:
    """How many groups to have ahead of the trainer, where nobody says: enough to keep all slots busy, and no
    fewer than the trainer can take before they are stale (TRL's own bound on what is in flight).

    A group is open until its slowest attempt ends, and the slots of the others are free for other groups by
    then. Of n attempts with exponential durations the slowest takes the n-th harmonic number times the mean
    of one, and so many times more groups are open than fit into the slots at once.

    Args:
        concurrency: Rollouts at once.
        step_rows: Rows of an optimizer step.
    """
    slowest = sum(1 / place for place in range(1, group_size + 1))
    busy = math.ceil(concurrency * slowest / group_size)
    fresh = math.ceil(max(1, max_staleness) * step_rows / group_size)
    return max(2, busy, fresh)


def tasks_from(begun: int, names: Sequence[str], options: FeedOptions) -> Iterator[str]:
    """The tasks of the groups from number `begun` on, without end: each of `names` once an epoch."""
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
