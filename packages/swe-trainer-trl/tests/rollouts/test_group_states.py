"""RolloutFeeder with rollouts in memory, beside a model of its groups: what runs, what the journal has."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swe_core.api.records import Rollout
from swe_core.errors import SweError
from swe_core.rollout.training_records import ClosedGroup, read_groups
from swe_trainer_trl.journal.groups import Assessed, Member, assess, closed_group
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts.group_scheduler import tasks_from
from swe_trainer_trl.rollouts.messages import Back, FeedOptions, Lost, Taken, Version

from ..journal.test_journal_states import MEMORY
from .in_memory import Feeding, Rollouts, Running


@dataclass
class Attempt:
    """What the feeder must know of an attempt of an open group."""

    group: int
    number: int
    tries: int = 0
    member: Member | None = None


class GroupStates(RuleBasedStateMachine):
    """Rollouts come and end in any order, servers die, the policy goes on, and the process is ended."""

    @initialize(
        group_size=st.integers(1, 3),
        groups_ahead=st.integers(1, 3),
        groups=st.sampled_from([None, None, 4]),
        max_staleness=st.integers(0, 2),
        min_scored=st.integers(1, 2),
        keep=st.booleans(),
        overlong=st.sampled_from(["grade", "exclude", "zero"]),
        servers=st.integers(1, 2),
    )
    def begin(self, keep: bool, servers: int, **options: Any) -> None:
        options["keep_without_spread"] = keep
        self.options = FeedOptions(**options, give_up_after=10**6, shuffle=True, seed=3)
        names = ("max_staleness", "min_scored", "keep_without_spread", "overlong")
        self.judged = {name: options[name] for name in names}
        self.path = Path(tempfile.mkdtemp(dir=MEMORY))
        self.feeding = Feeding(self.path, self.options, servers=servers)
        self.alive = set(self.feeding.servers)
        self.versions = [1]
        self.trained: set[int] = set()
        self.open: dict[int, list[Attempt]] = {}
        self.closed: dict[int, tuple[list[Member], Assessed]] = {}
        self.in_flight: set[int] = set()
        self.names = [request.task.instance_id for request in self.feeding.rollouts.requests]
        self.feeding.start(1, {1: 1})
        self.follow()

    def teardown(self) -> None:
        if hasattr(self, "feeding"):
            self.feeding.close()
            shutil.rmtree(self.path)

    # the model

    @property
    def version(self) -> int:
        return self.versions[-1]

    def waiting(self) -> set[int]:
        return {group for group, (_, assessed) in self.closed.items() if assessed.rows} - self.trained

    def task(self, group: int) -> str:
        return next(tasks_from(group, self.names, self.options))

    def name(self, attempt: Attempt) -> str:
        first = f"{self.task(attempt.group)}-g{attempt.group}-{attempt.number}"
        return first if attempt.tries == 0 else f"{first}-{attempt.tries + 1}"

    def running(self) -> dict[str, Attempt]:
        return {
            self.name(one): one
            for group in self.open.values()
            for one in group
            if one.member is None and self.name(one) in self.feeding.rollouts.running
        }

    def follow(self) -> None:
        """Close what is complete, and begin what there is room for."""
        for group, mine in list(self.open.items()):
            if all(one.member is not None for one in mine):
                del self.open[group]
                members = [one.member for one in mine if one.member is not None]
                assessed = assess(members, update=self.version, **self.judged)
                self.closed[group] = members, assessed
                if not assessed.rows:
                    self.in_flight.discard(group)
        begun = len(self.open) + len(self.closed)
        while len(self.in_flight) < self.options.groups_ahead and begun != self.options.groups:
            self.open[begun] = [Attempt(begun, number) for number in range(self.options.group_size)]
            self.in_flight.add(begun)
            begun += 1

    def counts(self, attempt: Attempt, running: Running, rollout: Rollout) -> None:
        scored = rollout.reward is not None
        versions = running.versions if scored else []
        attempt.member = Member(
            rollout.id, attempt.number, rollout.reward,
            tuple(self.feeding.rollouts.record(running).chains),
            min(versions, default=None), max(versions, default=None),
            rollout.finish_reason == "length",
        )  # fmt: skip

    def ended(self, name: str, void: bool = False) -> None:
        """A rollout that ran at the start of this rule is over."""
        attempt, running = self.began[name]
        rollout = self.feeding.rollouts.records[name].rollout
        if void:
            attempt.tries += 1
        else:
            self.counts(attempt, running, rollout)

    def repeat(self, why: str | None) -> None:
        """Whatever was cancelled meanwhile runs again, also what has just begun."""
        for attempt in (one for mine in self.open.values() for one in mine if one.member is None):
            finished = self.feeding.rollouts.records.get(self.name(attempt))
            if finished is not None:
                assert (finished.rollout.outcome, finished.rollout.cancelled_as) == ("cancelled", why)
                attempt.tries += 1

    def note(self) -> None:
        self.began = {
            name: (attempt, self.feeding.rollouts.running[name]) for name, attempt in self.running().items()
        }

    def stale(self) -> None:
        """Rollouts whose oldest id is too old by now are over."""
        for name, (attempt, running) in self.began.items():
            old = running.versions and self.version - min(running.versions) > self.options.max_staleness
            if old and attempt.member is None and running.end.get("outcome") == "cancelled":
                assert running.end["cancelled_as"] == "stale"
                self.ended(name)
            else:
                assert not old

    # what happens

    @precondition(lambda self: self.running())
    @rule(data=st.data(), behind=st.integers(0, 2))
    def turn(self, data: st.DataObject, behind: int) -> None:
        """An answer, perhaps of a policy of long ago."""
        name = data.draw(st.sampled_from(sorted(self.running())))
        self.note()
        if self.feeding.rollouts.running[name].phase == "grade":
            return
        self.feeding.rollouts.phase(name, "agent")
        self.feeding.rollouts.answer(name, self.versions[-1 - min(behind, len(self.versions) - 1)])
        self.feeding.do()
        self.stale()
        self.follow()

    @precondition(lambda self: self.running())
    @rule(data=st.data(), end=st.sampled_from(["resolved", "resolved", "unresolved", "cut", "agent"]))
    def finish(self, data: st.DataObject, end: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.running())))
        self.note()
        if end in ("resolved", "unresolved") and not self.feeding.rollouts.running[name].versions:
            self.feeding.rollouts.answer(name)
        self.feeding.rollouts.finish(name, end)
        self.feeding.do()
        self.ended(name)
        self.follow()

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def grade(self, data: st.DataObject) -> None:
        self.feeding.rollouts.phase(data.draw(st.sampled_from(sorted(self.running()))), "grade")

    @precondition(lambda self: self.running())
    @rule(data=st.data(), dies=st.booleans())
    def fail_at_the_engine(self, data: st.DataObject, dies: bool) -> None:
        """Of an attempt whose server has died it says nothing, and the death may be known a moment later."""
        name = data.draw(st.sampled_from(sorted(self.running())))
        self.note()
        attempt, running = self.began[name]
        url = data.draw(st.sampled_from(sorted(self.alive))) if dies and self.alive else None
        self.feeding.dead = set() if url is None else {url}
        self.feeding.rollouts.finish(name, "engine")
        self.feeding.do()
        if url is None:
            self.ended(name, void=running.losses != self.feeding.rollouts.losses)
            self.follow()
            return
        assert attempt.number not in self.members_of(attempt.group)
        if running.losses != self.feeding.rollouts.losses:  # one died meanwhile: it began again at once
            self.ended(name, void=True)
            self.lose(url)
        else:
            self.lose(url, attempt)

    def members_of(self, group: int) -> set[int]:
        (found,) = (one for one in self.feeding.journal.unfinished() if one.id == group)
        return {member.attempt for member in found.members}

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        self.lose(data.draw(st.sampled_from(sorted(self.alive))))

    def lose(self, url: str, failed: Attempt | None = None) -> None:
        self.note()
        self.alive.discard(url)
        self.feeding.dead = set()
        self.feeding.rollouts.losses += 1
        self.feeding.say(Lost(url=url))
        if failed is not None:
            failed.tries += 1
        for name, (_, running) in self.began.items():
            if running.phase != "grade" and (not self.alive or running.url == url):
                assert self.feeding.rollouts.records[name].rollout.cancelled_as == "engine_lost"
                self.ended(name, void=True)
        self.follow()

    @precondition(lambda self: len(self.alive) < len(self.feeding.servers))
    @rule(data=st.data(), again=st.booleans())
    def back(self, data: st.DataObject, again: bool) -> None:
        """One that is lost again at once gets nothing."""
        url = data.draw(st.sampled_from(sorted(set(self.feeding.servers) - self.alive)))
        if again and not self.alive:
            self.feeding.rollouts.losses += 1
            self.feeding.say(Back(url=url), Lost(url=url))
            self.repeat("engine_lost")
        else:
            self.alive.add(url)
            self.feeding.say(Back(url=url))
        self.follow()

    @rule(further=st.integers(1, 2))
    def advance(self, further: int) -> None:
        self.note()
        self.versions.append(self.version + further)
        self.feeding.say(Version(version=self.version, updates=self.version))
        self.stale()
        self.follow()

    @precondition(lambda self: set(self.closed) & self.in_flight)
    @rule(data=st.data(), trained=st.booleans())
    def taken(self, data: st.DataObject, trained: bool) -> None:
        group = data.draw(st.sampled_from(sorted(set(self.closed) & self.in_flight)))
        if trained:
            (ready,) = (one for one in self.feeding.journal.ready(limit=999) if one.id == group)
            self.feeding.journal.mark_trained([row for row, _ in ready.rows], 1)
            self.trained.add(group)
        self.feeding.say(Taken(group=group))
        self.in_flight.discard(group)
        self.follow()

    @rule(gone=st.booleans(), unwritten=st.booleans())
    def resume(self, gone: bool, unwritten: bool) -> None:
        """Running rollouts are begun again. `unwritten`: one is finished, and not yet in the journal."""
        rollouts = self.feeding.rollouts
        self.note()
        if unwritten and self.began:
            name = next(iter(self.began))
            rollouts.answer(name)
            with patch.object(Journal, "add_member", _full):
                rollouts.finish(name, "resolved")
                self.feeding.do(self.feeding.task)
            assert str(self.feeding.problem) == "the disk is full"
            self.feeding.ended()
            self.ended(name)
        else:
            self.feeding.end(gone)
        self.repeat(None)
        self.alive = set(self.feeding.servers)
        self.in_flight = {*self.open, *self.waiting()}
        self.feeding.start(self.version, {version: version for version in self.versions})
        self.follow()

    # what must be so

    @invariant()
    def same_groups(self) -> None:
        journal = self.feeding.journal
        assert self.feeding.problem is None
        assert not self.feeding.task.done()
        assert journal.groups_begun() == len(self.open) + len(self.closed)
        unfinished = {group.id: group for group in journal.unfinished()}
        assert unfinished.keys() == self.open.keys()
        for number, mine in self.open.items():
            assert (unfinished[number].task_id, unfinished[number].size) == (self.task(number), len(mine))
            found = {member.attempt: facts(member) for member in unfinished[number].members}
            assert found == {one.number: facts(one.member) for one in mine if one.member is not None}

    @invariant()
    def same_rollouts(self) -> None:
        """As many run as there are slots for, each attempt once, and none without a server."""
        running = self.running()
        assert running.keys() == self.feeding.rollouts.running.keys()
        left = [one for mine in self.open.values() for one in mine if one.member is None]
        if self.alive:
            assert len(running) == min(len(left), Rollouts.concurrency)
        else:
            assert all(one.phase == "grade" for one in self.feeding.rollouts.running.values())

    @invariant()
    def same_rows(self) -> None:
        ready = {group.id: group for group in self.feeding.journal.ready(limit=999)}
        assert ready.keys() == self.waiting()
        lines = {line.group: line for line in read_groups(self.path)}
        assert lines.keys() == self.closed.keys()
        for number, (members, assessed) in self.closed.items():
            wanted = closed_group(number, self.task(number), members, assessed)
            assert rounded(lines[number]) == rounded(wanted)
            if number in ready:
                rows = {row.rollout_id: row for _, row in ready[number].rows}
                assert rows.keys() == {row.rollout_id for row in assessed.rows}
                for row in assessed.rows:
                    got = rows[row.rollout_id]
                    assert (got.reward, got.update) == (row.reward, row.update)
                    assert got.advantage == pytest.approx(row.advantage)


def rounded(line: ClosedGroup) -> dict[str, Any]:
    """The order of a sum changes its last digit."""
    found = line.model_dump()
    for one in found["members"]:
        one["advantage"] = one["advantage"] and round(one["advantage"], 9)
    return found


def facts(member: Member) -> tuple[Any, ...]:
    tokens = sum(len(chain.input_ids) for chain in member.chains)
    return member.rollout_id, member.reward, member.oldest, member.newest, member.overlong, tokens


def _full(*_: object) -> None:
    raise SweError("the disk is full")


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_groups_are_those_of_a_plain_model(examples: int) -> None:
    """The few examples are always the same ones."""
    chosen = settings(max_examples=examples, stateful_step_count=40, derandomize=examples == 8)
    stateful.run_state_machine_as_test(GroupStates, settings=chosen)
