"""The journal beside a plain model of it: whatever comes in whatever order, also a kill, they agree."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swe_core.errors import SweError, UsageError
from swe_trainer_trl.journal.groups import Assessed, Member, Row, assess
from swe_trainer_trl.journal.journal import BegunEvaluation, Journal

from .test_journal import content, fates, make_chain, sql

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Each method waits for its disk, which is not what this is about."""


@dataclass
class Group:
    """What the journal must know of a group."""

    task: str
    size: int
    members: list[Member] = field(default_factory=list)
    closed: int | None = None
    skipped: str | None = None
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass
class Kept:
    """A row; `state` is None while it waits, the step that trained it, or why it was dropped."""

    group: int
    row: Row
    state: int | str | None = None
    emptied: bool = False


def trainable(member: Member) -> int:
    return sum(int(chain.completion_mask.sum()) for chain in member.chains)


def count(row: Row) -> int:
    return int((row.completion_mask != 0).sum())


@st.composite
def members(draw: st.DrawFn, name: str) -> Member:
    chains = tuple(make_chain(tokens, tokens) for tokens in draw(st.lists(st.integers(1, 9), max_size=2)))
    oldest = draw(st.integers(0, 4)) if chains else None
    newest = None if oldest is None else oldest + draw(st.integers(0, 2))
    reward = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
    return Member(name, draw(st.integers(0, 9)), reward, chains, oldest, newest, draw(st.booleans()))


class Torn(tuple):
    """Chains that fail at the end of a transaction, as a bug would."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        raise RuntimeError("a bug")


class JournalStates(RuleBasedStateMachine):
    """All that the two processes do to it, and after each the same answers from a list and some dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.lives = 0
        self.path = self.folder / "0" / "train.sqlite"
        self.path.parent.mkdir()
        self.journal = Journal(self.path)
        self.groups: list[Group] = []
        self.rows: dict[int, Kept] = {}
        self.policies: dict[int, tuple[int | None, int]] = {}
        self.evaluations: list[tuple[BegunEvaluation, str]] = []
        self.held_out: dict[str, str] = {}
        self.step = 0

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)

    def open_groups(self) -> list[int]:
        return [number for number, group in enumerate(self.groups) if group.closed is None]

    def free(self) -> list[int]:
        return [key for key, kept in self.rows.items() if kept.state is None]

    # the two processes

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal(self.path)

    @rule()
    def kill(self) -> None:
        """What lies on the disk at this instant is all that the next process has."""
        self.lives += 1
        there = self.folder / str(self.lives)
        shutil.copytree(self.path.parent, there)
        self.journal.close()
        self.path = there / "train.sqlite"
        self.journal = Journal(self.path)

    # the rollouts' side

    @rule(task=st.sampled_from("ab"), size=st.integers(1, 3))
    def open(self, task: str, size: int) -> None:
        assert self.journal.open_group(task, size) == len(self.groups)
        self.groups.append(Group(task, size))

    @precondition(lambda self: self.open_groups())
    @rule(data=st.data(), torn=st.sampled_from([False, False, False, True]))
    def add(self, data: st.DataObject, torn: bool) -> None:
        group = data.draw(st.sampled_from(self.open_groups()))
        member = data.draw(members(f"{group}-{len(self.groups[group].members)}"))
        if torn:
            broken = Member(member.rollout_id, member.attempt, member.reward, (), 0, 0)
            object.__setattr__(broken, "chains", Torn(member.chains))
            with pytest.raises(RuntimeError, match="a bug"):
                self.journal.add_member(group, broken)
            return
        self.journal.add_member(group, member)
        self.groups[group].members.append(member)
        with pytest.raises(SweError, match="UNIQUE"):
            self.journal.add_member(group, member)
        with pytest.raises(SweError, match="FOREIGN KEY"):
            self.journal.add_member(len(self.groups), member)

    @precondition(lambda self: self.open_groups())
    @rule(data=st.data(), update=st.integers(2, 6), min_scored=st.integers(1, 2), keep=st.booleans())
    def close(self, data: st.DataObject, update: int, min_scored: int, keep: bool) -> None:
        number = data.draw(st.sampled_from(self.open_groups()))
        group = self.groups[number]
        assessed = assess(
            group.members,
            update=update,
            max_staleness=3,
            min_scored=min_scored,
            keep_without_spread=keep,
            overlong=data.draw(st.sampled_from(["grade", "exclude", "zero"])),
        )
        self.hand_over(number, assessed)
        for other in (number, len(self.groups)):
            with pytest.raises(SweError, match=f"group {other} is not open"):
                self.journal.close_group(other, assessed)

    @rule(
        kinds=st.lists(st.sampled_from(["counts", "counts", "cut", "old"]), min_size=1, max_size=4),
        trained=st.integers(0, 2),
    )
    def whole(self, kinds: list[str], trained: int) -> None:
        """A group with a row of each attempt that was neither cut short nor is too old; some are trained."""
        self.open("a", len(kinds))
        number, mine = len(self.groups) - 1, self.groups[-1].members
        for attempt, kind in enumerate(kinds):
            age = 0 if kind == "old" else 1
            chain = make_chain(attempt + 2, attempt)
            mine.append(Member(f"{attempt}", attempt, 1.0, (chain,), age, age, kind == "cut"))
            self.journal.add_member(number, mine[-1])
        options: Any = {"update": 1, "max_staleness": 0, "min_scored": 1, "overlong": "exclude"}
        self.hand_over(number, assess(mine, keep_without_spread=True, **options))
        for row in [row for row in self.free() if self.rows[row].group == number][:trained]:
            self.step += 1
            self.journal.mark_trained([row], self.step)
            self.rows[row].state = self.step

    def hand_over(self, number: int, assessed: Assessed) -> None:
        self.journal.close_group(number, assessed)
        group = self.groups[number]
        group.closed = sum(other.closed is not None for other in self.groups)
        group.skipped = assessed.skipped
        in_rows = {row.rollout_id for row in assessed.rows}
        for member in group.members:
            if member.rollout_id not in in_rows:
                excluded = assessed.rows and member.rollout_id in assessed.overlong
                why = "overlong" if excluded else assessed.skipped or "stale"
                group.left_out[why] += trainable(member)
        for row in assessed.rows:
            self.rows[len(self.rows) + 1] = Kept(number, row)
        group.members = []

    # the trainer's side

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        self.step += 1
        rows = data.draw(st.lists(st.sampled_from(self.free()), min_size=1, unique=True))
        self.journal.mark_trained(rows, self.step)
        for row in rows:
            self.rows[row].state = self.step

    @precondition(lambda self: self.free())
    @rule(data=st.data(), why=st.sampled_from(["stale", "too_long", "left_over"]))
    def drop(self, data: st.DataObject, why: Any) -> None:
        rows = data.draw(st.lists(st.sampled_from(self.free()), min_size=1, unique=True))
        self.journal.drop(rows, why)
        for row in rows:
            self.rows[row].state, self.rows[row].emptied = why, True

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(0, self.step))
        self.journal.forget(step)
        for kept in self.rows.values():
            if isinstance(kept.state, int) and kept.state <= step:
                kept.emptied = True

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        """What was forgotten stays trained: an empty row must never be trained."""
        self.step = data.draw(st.integers(0, self.step))
        self.journal.rewind(self.step)
        for kept in self.rows.values():
            if isinstance(kept.state, int) and kept.state > self.step and not kept.emptied:
                kept.state = None
        for place, (one, _) in enumerate(self.evaluations):
            if one.step > self.step:
                self.evaluations[place] = one, "lost"

    @rule(
        sent=st.lists(
            st.tuples(st.sampled_from([1, 2, 0, -1]), st.sampled_from([0, 1, 2, None]), st.booleans()),
            min_size=1,
            max_size=5,
        )
    )
    def raise_versions(self, sent: list[tuple[int, int | None, bool]]) -> None:
        for one in sent:
            self.raise_version(*one)

    def raise_version(self, ahead: int, step: int | None, again: bool) -> None:
        """A policy is as old as the updates behind it: neither lost steps nor weights sent again age it."""
        newest = max(self.policies, default=0)
        version = newest + ahead
        self.journal.raise_version(version, step, again=again)
        if ahead <= 0:
            return
        sent = [
            updates
            for of, updates in self.policies.values()
            if again and step is not None and of is not None and of <= step
        ]
        before = self.policies[newest][1] if newest else 0
        self.policies[version] = step, max(sent) if sent else before + ahead

    @rule(step=st.integers(0, 4))
    def evaluate(self, step: int) -> None:
        got = self.journal.begin_evaluation(step, step + 1)
        round_ = 1 + sum(one.step == step for one, _ in self.evaluations)
        assert got == BegunEvaluation(len(self.evaluations) + 1, step, round_, step + 1)
        assert got.name == (f"eval{step}" if round_ == 1 else f"eval{step}.{round_}")
        self.evaluations.append((got, "open"))

    @precondition(lambda self: self.evaluations)
    @rule(data=st.data())
    def finish_evaluation(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.evaluations) - 1))
        one, state = self.evaluations[place]
        if state != "lost":
            self.journal.finish_evaluation(one.id)
            self.evaluations[place] = one, "finished"

    @rule(tasks=st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), min_size=1))
    def hold_out(self, tasks: dict[str, str]) -> None:
        before, self.held_out = self.held_out, self.held_out or tasks
        if not before or tasks == before:
            self.journal.hold_out(tasks)
            return
        names = sorted(name for name in before | tasks if before.get(name) != tasks.get(name))
        named = f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
        with pytest.raises(UsageError, match=rf"other tasks \({named}\): resume it with the same"):
            self.journal.hold_out(tasks)

    # what it says

    def expected(self, after: int, limit: int) -> list[Any]:
        """The groups that wait for the trainer, in the order of closing, with their rows."""
        found = []
        for number in sorted(
            (n for n, group in enumerate(self.groups) if group.closed is not None),
            key=lambda n: self.groups[n].closed or 0,
        ):
            mine = {key: kept for key, kept in self.rows.items() if kept.group == number}
            rows = [(key, content(kept.row)) for key, kept in mine.items() if kept.state is None]
            trained: Counter[str] = Counter()
            for kept in mine.values():
                if isinstance(kept.state, int):
                    trained[kept.row.rollout_id] += count(kept.row)
            if rows and (self.groups[number].closed or 0) > after:
                found.append((number, self.groups[number].closed, rows, dict(trained)))
        return found[:limit]

    def same_rows(self, after: int, limit: int) -> None:
        got = [
            (one.id, one.closed, [(key, content(row)) for key, row in one.rows], one.trained)
            for one in self.journal.ready(after, limit)
        ]
        assert got == self.expected(after, limit)

    @invariant()
    def same_groups(self) -> None:
        journal = self.journal
        assert [
            (one.id, one.task_id, one.size, [content(member) for member in one.members])
            for one in journal.unfinished()
        ] == [
            (number, self.groups[number].task, self.groups[number].size,
             [content(member) for member in self.groups[number].members])
            for number in self.open_groups()
        ]  # fmt: skip
        for after, limit in ((-1, 1000), (-1, 1), (0, 1), (1, 2)):
            self.same_rows(after, limit)
        waiting = {self.rows[row].group for row in self.free()}
        closed = [number for number, group in enumerate(self.groups) if group.closed is not None]
        assert journal.groups_begun() == len(self.groups)
        assert journal.groups_done() == len(set(closed) - waiting)
        for groups in (len(self.groups), len(self.groups) + 1):
            assert journal.all_closed(groups) == (groups <= len(self.groups) == len(closed))
        skipped = Counter(group.skipped for group in self.groups if group.skipped is not None)
        assert list(journal.skipped().items()) == sorted(skipped.items(), key=lambda one: (-one[1], one[0]))

    @invariant()
    def same_account(self) -> None:
        """Trained, waiting or dropped for a reason: they add up to what was sampled, and ids lie only where
        they are needed."""
        wanted: Counter[str] = Counter()
        for group in self.groups:
            wanted.update(group.left_out)
            wanted["waiting"] += sum(map(trainable, group.members))
        for kept in self.rows.values():
            fate = "trained" if isinstance(kept.state, int) else kept.state or "waiting"
            wanted[fate] += count(kept.row)
        assert fates(self.journal) == +wanted
        held = [len(self.groups[number].members) for number in self.open_groups()]
        chains = sum(len(m.chains) for number in self.open_groups() for m in self.groups[number].members)
        assert sql(self.path, "SELECT (SELECT count(*) FROM members), (SELECT count(*) FROM chains)") == [
            (sum(held), chains)
        ]
        assert sql(
            self.path, "SELECT id FROM rows WHERE length(ids) + length(mask) + length(logprobs) ORDER BY id"
        ) == [(key,) for key, kept in self.rows.items() if not kept.emptied]

    @invariant()
    def same_policies_and_evaluations(self) -> None:
        journal = self.journal
        assert journal.updates() == {version: updates for version, (_, updates) in self.policies.items()}
        assert journal.version == max(self.policies, default=0)
        last = max((kept.state for kept in self.rows.values() if isinstance(kept.state, int)), default=0)
        assert sql(self.path, "SELECT * FROM progress") == [(last, journal.version, len(self.groups))]
        by_state: dict[bool, list[BegunEvaluation]] = {True: [], False: []}
        for one, state in self.evaluations:
            by_state[state == "open"].append(one)
        assert (journal.open_evaluations(), journal.ended_evaluations()) == (by_state[True], by_state[False])
        steps = [one.step for one, state in self.evaluations if state != "lost"]
        assert journal.last_evaluation() == max(steps, default=None)


@pytest.mark.parametrize("examples", [10, pytest.param(150, marks=pytest.mark.slow)])
def test_journal_says_what_a_plain_model_of_it_says(examples: int) -> None:
    """The few examples are always the same ones."""
    chosen = settings(max_examples=examples, stateful_step_count=50, derandomize=examples == 10)
    stateful.run_state_machine_as_test(JournalStates, settings=chosen)
