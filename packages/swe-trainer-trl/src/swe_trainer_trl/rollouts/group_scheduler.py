"""GroupScheduler: runs groups of attempts, from the first rollout to rows in the journal."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import numpy as np
import orjson
from anyio.to_thread import run_sync

from swe_core.api.records import Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.api.worker import FinishedRollout
from swe_core.errors import ConfigError, SweError
from swe_core.rollout.training_records import GROUPS_FILE, ClosedGroup, append_lines
from swe_core.system.plural import counted
from swe_trainer_trl.journal.groups import Assessed, Member, assess, closed_group
from swe_trainer_trl.journal.journal import Journal, OpenGroup
from swe_trainer_trl.overlong import counted_reward, is_overlong
from swe_trainer_trl.rollouts.attempts import Attempts
from swe_trainer_trl.rollouts.messages import FeedOptions
from swe_trainer_trl.rollouts.metrics import RolloutMetrics, most_frequent
from swe_trainer_trl.rollouts.staleness import StalenessCheck

logger = logging.getLogger(__name__)

_ALIKE = 64
"""Consecutive groups without a spread of rewards, or with too many attempts excluded as overlong, in at least
two epochs, after which the run ends."""


class GroupScheduler:
    """Runs groups until it is cancelled, or has run the last one.

    The number of a group determines its task. Rollouts start in the order of their groups, limited by the
    runner's concurrency, so the oldest group tends to be complete first. The trainer limits the number of
    groups in flight: a new group waits until the trainer has taken an older one.

    Args:
        attempts: Runs the attempts.
        requests: A request for each attempt at each task to train on.
        closed: Called after a group is closed in the journal.
    """

    def __init__(
        self,
        options: FeedOptions,
        journal: Journal,
        attempts: Attempts,
        requests: Sequence[RolloutRequest],
        run: Path,
        freshness: StalenessCheck,
        tally: RolloutMetrics,
        closed: Callable[[int], None],
    ) -> None:
        self._options = options
        self._journal = journal
        self._attempts = attempts
        self._run = run
        self._freshness = freshness
        self._tally = tally
        self._closed = closed
        self._templates = {request.task.instance_id: request for request in requests}
        self._in_flight: set[int] = set()
        self._room = anyio.Condition()
        self._failures: list[str] = []
        self._without_verdict = 0
        self._alike = 0
        self._cut = False
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
        """Resume `groups`, then begin new ones, until the last one is closed or this is cancelled.

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
        name, template = f"{group.task_id}-g{group.id}-{attempt}", self._templates[group.task_id]
        finished = await self._attempts.run(template, name, attempt, ran=self._count_lost)
        rollout = finished.rollout
        if rollout.failure is not None:
            failures.append(f"{rollout.failure.boundary}: {rollout.failure.message}")
        with anyio.CancelScope(shield=True):  # finished work must survive a stop
            member = await run_sync(self._member, finished)
            await run_sync(self._journal.add_member, group.id, member)
        members.append(member)

    def _count_lost(self, rollout: Rollout) -> None:
        if rollout.reward is not None and rollout.ledger is not None:
            self._lost.update(rollout.ledger.dropped)

    def _member(self, finished: FinishedRollout) -> Member:
        rollout, chains = finished.rollout, finished.chains
        versions = np.concatenate([np.empty(0, np.int32), *(c.versions[c.completion_mask] for c in chains)])
        updates = [self._freshness.update_of(version) for version in np.unique(versions).tolist()]
        return Member(
            rollout.id,
            rollout.attempt,
            counted_reward(finished, self._options.agent_errors),
            tuple(chains),
            min(updates, default=None),
            max(updates, default=None),
            is_overlong(rollout),
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
            overlong=options.overlong,
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
        self._give_up_if_unlearnable(assessed.skipped)

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
            append_lines(self._run / GROUPS_FILE, [line])
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

    def _give_up_if_unlearnable(self, skipped: str | None) -> None:
        """Give up if the policy always or never succeeds, or is always cut short: it would never learn."""
        self._alike = self._alike + 1 if skipped in ("no_spread", "overlong") else 0
        self._cut = skipped == "overlong" or (self._cut and self._alike > 0)
        if self._alike >= max(_ALIKE, 2 * len(self._templates)):
            cut = " or too many were excluded as overlong" if self._cut else ""
            budgets = ", raise the budgets that cut them" if self._cut else ""
            raise SweError(
                f"in each of the last {self._alike} groups all attempts had the same reward{cut}, so nothing "
                f"could be trained: take other tasks, raise --attempts{budgets}, or set "
                "worker.trl.no_spread=keep"
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
    """Yield the tasks of the groups from number `begun` to the last one: each of `names` once an epoch."""
    for number in itertools.count(begun) if options.groups is None else range(begun, options.groups):
        epoch, place = divmod(number, len(names))
        if place == 0 or number == begun:
            order = list(names)
            if options.shuffle:
                random.Random(f"{options.seed}:{epoch}").shuffle(order)
        yield order[place]
