"""Journal: the durable queue of groups, attempts and rows between rollout process and trainer.

Both processes use one SQLite file: the rollout process adds groups and members, the trainer takes and marks
rows. Every method is one transaction, which is on disk when the method returns (write-ahead log,
`synchronous=FULL`). A kill therefore loses nothing that a method confirmed, and leaves nothing incomplete.
Writing methods wait for the disk: call them from a thread, not from an event loop.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from swe_core.errors import SweError, UsageError, sentence
from swe_core.rollout.training_records import JOURNAL_FILE
from swe_trainer_trl.journal.arrays import arrays, blobs, count, read_chain
from swe_trainer_trl.journal.groups import Assessed, Member, Row
from swe_trainer_trl.journal.statements import (
    APPLICATION,
    EMPTY,
    FORMAT,
    RAISE,
    READY,
    SCHEMA,
    TOKENS_OF_MEMBERS,
    TRAINED,
    VIEWS,
)

_BUSY_TIMEOUT = 60.0  # seconds to wait for the other process's transaction
_OF_MEMBER = attrgetter("rollout_id", "attempt", "reward", "oldest", "newest", "overlong")

JOURNAL = JOURNAL_FILE
"""Name of the file in the run directory."""
Dropped = Literal["stale", "too_long", "left_over"]
"""Why the trainer did not train a row: its policy was too old, it exceeds the token budget, or the last rows
are fewer than the trainer processes."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenGroup:
    """A group that is not closed.

    Args:
        id: Number of the group, in the order of their starts, from 0.
        task_id: The task of its attempts.
        size: Number of attempts.
        members: Finished attempts, in the order in which they finished.
    """

    id: int
    task_id: str
    size: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class BegunEvaluation:
    """An evaluation of the policy.

    Args:
        id: Its key in the journal.
        step: Optimizer steps of the evaluated weights.
        round: 1, or one more than evaluations of this step whose weights a resume has lost.
        version: Policy version at its start.
    """

    id: int
    step: int
    round: int
    version: int

    @property
    def name(self) -> str:
        """Return its part of the ids of its rollouts."""
        return f"eval{self.step}" if self.round == 1 else f"eval{self.step}.{self.round}"


@dataclass(frozen=True, slots=True, eq=False)
class ReadyGroup:
    """A closed group with rows to train.

    Args:
        id: Number of the group.
        closed: Position in the order of closing, which differs from the order of numbers.
        rows: Id and content of each row that is neither trained nor dropped.
        trained: Rollout → number of ids in its rows that are trained already.
    """

    id: int
    closed: int
    rows: list[tuple[int, Row]]
    trained: dict[str, int]


class Journal:
    """The open journal of a run, which creates a missing file. Threads may share it.

    Args:
        path: The file. SQLite keeps two more files beside it while it is open.

    Raises:
        UsageError: The file is no journal, or has another format version.
        SweError: The file cannot be opened or created. Every method raises this if the file is damaged, the
            disk is full, or the other process blocks the file for a minute.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failed(error) from error
        try:
            self._prepare()
        except BaseException:  # also cancellation: clean up, then raise
            self._db.close()
            raise

    def _prepare(self) -> None:
        with self._transaction() as db:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (objects,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if (application, version, objects) == (0, 0, 0):
                for statement in f"{SCHEMA};{VIEWS}".split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {FORMAT}")
            elif application != APPLICATION:
                raise UsageError(
                    f"{str(self._path)!r} is a database of another program, where the training journal of "
                    "this run is expected; name another run directory"
                )
            elif version != FORMAT:
                raise UsageError(
                    f"the training journal {str(self._path)!r} has format {version}, and this version of "
                    f"swe-trainer-trl works with format {FORMAT}; resume with the version that wrote it, or "
                    "start a new run"
                )
        # None of these can be set inside a transaction.
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file. No change is pending."""
        with self._lock:
            self._db.close()

    # --- the rollouts' side ---

    def open_group(self, task_id: str, size: int) -> int:
        """Begin a group of `size` attempts at a task.

        Returns:
            The group's number, which counts from 0 over all processes of the run.
        """
        with self._transaction() as db:
            (group,) = db.execute("SELECT count(*) FROM groups").fetchone()
            db.execute("INSERT INTO groups (id, task_id, size) VALUES (?, ?, ?)", (group, task_id, size))
        return int(group)

    def add_member(self, group: int, member: Member) -> None:
        """Record a finished attempt of an open group."""
        with self._transaction() as db:
            added = db.execute(
                "INSERT INTO members (group_id, rollout_id, attempt, reward, oldest, newest, overlong) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (group, *_OF_MEMBER(member)),
            ).lastrowid
            db.executemany(
                "INSERT INTO chains (member_id, ids, mask, logprobs, versions, turns, cause, tokens) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        added,
                        *blobs(chain.input_ids, chain.completion_mask, chain.old_log_probs),
                        chain.versions.astype("<i4").tobytes(),
                        np.array(chain.turns, "<i4").tobytes(),
                        chain.cause,
                        count(chain.completion_mask),
                    )
                    for chain in member.chains
                ],
            )

    def close_group(self, group: int, assessed: Assessed) -> None:
        """Hand the group's rows to the trainer, or record why there are none.

        Raises:
            SweError: The group is not open, so its rows would be trained twice.
        """
        with self._transaction() as db:
            closed = db.execute(
                "UPDATE groups SET skipped = ?, closed = (SELECT coalesce(max(closed), -1) + 1 FROM groups) "
                "WHERE id = ? AND closed IS NULL",
                (assessed.skipped, group),
            ).rowcount
            if not closed:
                raise SweError(f"group {group} is not open in the training journal; close each group once")
            in_rows = sum(count(row.completion_mask) for row in assessed.rows)
            tokens = dict(db.execute(TOKENS_OF_MEMBERS, (group,)))
            excluded = sum(tokens.get(name, 0) for name in assessed.overlong) if assessed.rows else 0
            db.execute(
                "UPDATE groups SET left_out = ?, overlong = ? WHERE id = ?",
                (sum(tokens.values()) - in_rows - excluded, excluded, group),
            )
            db.execute("DELETE FROM members WHERE group_id = ?", (group,))
            db.executemany(
                "INSERT INTO rows (group_id, rollout_id, ids, mask, logprobs, advantage, policy_update, "
                "reward, tokens, chain, cause) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        group,
                        row.rollout_id,
                        *blobs(row.input_ids, row.completion_mask, row.old_log_probs),
                        row.advantage,
                        row.update,
                        row.reward,
                        count(row.completion_mask),
                        row.chain,
                        row.cause,
                    )
                    for row in assessed.rows
                ],
            )

    def unfinished(self) -> list[OpenGroup]:
        """Return the open groups in order, which a resumed run continues."""
        with self._transaction(write=False) as db:
            groups = db.execute(
                "SELECT id, task_id, size FROM groups WHERE closed IS NULL ORDER BY id"
            ).fetchall()
            return [
                OpenGroup(group, task_id, size, tuple(_members(db, group))) for group, task_id, size in groups
            ]

    def groups_begun(self) -> int:
        """Return the number of begun groups, which is the number of the next group."""
        with self._transaction(write=False) as db:
            (begun,) = db.execute("SELECT count(*) FROM groups").fetchone()
            return int(begun)

    # --- the trainer's side ---

    def ready(self, after: int = -1, limit: int = 1) -> list[ReadyGroup]:
        """Return closed groups with rows that are neither trained nor dropped, in the order of closing.

        A row that was taken but not marked is returned again, for example to the next process.

        Args:
            after: `ReadyGroup.closed` of the last taken group; -1 for all.
            limit: Maximum number of groups, whose tokens are then in memory.
        """
        groups: dict[int, ReadyGroup] = {}
        with self._transaction(write=False) as db:
            for group, closed, key, rollout_id, ids, mask, logprobs, *rest in db.execute(
                READY, (after, limit)
            ):
                row = Row(rollout_id, *arrays(ids, mask, logprobs), *rest)
                if group not in groups:
                    groups[group] = ReadyGroup(group, closed, [], dict(db.execute(TRAINED, (group,))))
                groups[group].rows.append((key, row))
        return list(groups.values())

    def mark_trained(self, row_ids: Iterable[int], step: int) -> None:
        """Record that the optimizer step number `step`, from 1, trained these rows."""
        with self._transaction() as db:
            db.executemany("UPDATE rows SET step = ? WHERE id = ?", [(step, row) for row in row_ids])

    def forget(self, step: int) -> None:
        """Delete the ids of rows trained by `step`, because no resume will use an earlier checkpoint."""
        with self._transaction() as db:
            db.execute(f"UPDATE rows SET {EMPTY} WHERE step <= ? AND ids != x''", (step,))

    def drop(self, row_ids: Iterable[int], why: Dropped) -> None:
        """Record that these rows are never trained, and delete their tokens."""
        with self._transaction() as db:
            rows = [(why, row) for row in row_ids]
            db.executemany(f"UPDATE rows SET dropped = ?, {EMPTY} WHERE id = ?", rows)

    def rewind(self, step: int) -> None:
        """Return to the checkpoint of `step` (0: the first model), before any row is taken.

        The training of later steps was lost with their weights, so their rows are available again, except
        rows without ids (`drop`, `forget`). Evaluations of later weights are lost.
        """
        with self._transaction() as db:
            db.execute("UPDATE rows SET step = NULL WHERE step > ? AND ids != x''", (step,))
            db.execute("UPDATE evaluations SET state = 'lost' WHERE step > ?", (step,))

    def groups_done(self) -> int:
        """Return the number of groups that are closed and have no more rows to train."""
        with self._transaction(write=False) as db:
            (done,) = db.execute(
                "SELECT count(closed) - (SELECT count(DISTINCT group_id) FROM rows "
                "WHERE step IS NULL AND dropped IS NULL) FROM groups"
            ).fetchone()
            return int(done)

    def all_closed(self, groups: int) -> bool:
        """Return whether so many groups have begun, and none is open."""
        with self._transaction(write=False) as db:
            begun, closed = db.execute("SELECT count(*), count(closed) FROM groups").fetchone()
            return bool(begun >= groups and begun == closed)

    def skipped(self) -> dict[str, int]:
        """Return the number of skipped groups by reason."""
        with self._transaction(write=False) as db:
            return dict(
                db.execute(
                    "SELECT skipped, count(*) FROM groups WHERE skipped IS NOT NULL GROUP BY skipped "
                    "ORDER BY count(*) DESC, skipped"
                )
            )

    def raise_version(self, version: int, step: int | None = None, *, again: bool = False) -> None:
        """Record a policy version before its announcement. A version that is not the highest has no effect.

        Args:
            step: Number of optimizer steps behind its weights; None if no resume will use them.
            again: Whether the weights are those that an earlier process had sent by that step, so that they
                are no update.
        """
        with self._transaction() as db:
            db.execute(RAISE, {"version": version, "step": step, "again": again})

    @property
    def version(self) -> int:
        """Return the highest recorded policy version of this run; 0 before the first."""
        return max(self.updates(), default=0)

    def updates(self) -> dict[int, int]:
        """Return policy version → number of updates of its weights, from 1.

        The number is the age of the version's tokens. After a resume, two versions may have the same number.
        """
        with self._transaction(write=False) as db:
            return dict(db.execute("SELECT version, updates FROM policies"))

    # --- evaluations ---

    def hold_out(self, tasks: Mapping[str, str]) -> None:
        """Record the held-out tasks of the training at its first evaluation.

        Args:
            tasks: Id → digest.

        Raises:
            UsageError: The training has evaluated on other tasks, so rates would not compare.
        """
        with self._transaction() as db:
            before = dict(db.execute("SELECT task_id, digest FROM held_out"))
            if not before:
                db.executemany("INSERT INTO held_out VALUES (?, ?)", tasks.items())
                return
        other = sorted(name for name in {*before, *tasks} if before.get(name) != tasks.get(name))
        if other:
            raise UsageError(
                f"this training evaluates on other tasks ({', '.join(other[:3])} "
                f"{'differs' if len(other) == 1 else 'differ'}): resume it with the same --eval-tasks, or "
                "without evaluations (--set worker.trl.eval_tasks=null)"
            )

    def begin_evaluation(self, step: int, version: int) -> BegunEvaluation:
        """Begin an evaluation of the weights of `step`, which are policy version `version`."""
        with self._transaction() as db:
            (earlier,) = db.execute("SELECT count(*) FROM evaluations WHERE step = ?", (step,)).fetchone()
            columns = step, earlier + 1, version
            key = db.execute(
                "INSERT INTO evaluations (step, round, version, state) VALUES (?, ?, ?, 'open')", columns
            ).lastrowid
            return BegunEvaluation(int(key or 0), *columns)

    def open_evaluations(self) -> list[BegunEvaluation]:
        """Return the evaluations that are neither finished nor lost, in order."""
        return [evaluation for evaluation, is_open in self._evaluations() if is_open]

    def ended_evaluations(self) -> list[BegunEvaluation]:
        """Return the evaluations that are finished or lost, in order."""
        return [evaluation for evaluation, is_open in self._evaluations() if not is_open]

    def _evaluations(self) -> list[tuple[BegunEvaluation, bool]]:
        with self._transaction(write=False) as db:
            rows = db.execute("SELECT id, step, round, version, state = 'open' FROM evaluations ORDER BY id")
            return [(BegunEvaluation(*row), bool(is_open)) for *row, is_open in rows]

    def finish_evaluation(self, evaluation: int) -> None:
        """Record that all attempts of an evaluation have finished."""
        with self._transaction() as db:
            db.execute("UPDATE evaluations SET state = 'finished' WHERE id = ?", (evaluation,))

    def last_evaluation(self) -> int | None:
        """Return the step of the last evaluation that is not lost; None without one."""
        with self._transaction(write=False) as db:
            (step,) = db.execute("SELECT max(step) FROM evaluations WHERE state != 'lost'").fetchone()
            return None if step is None else int(step)

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Run one transaction. A writer locks at its beginning, because SQLite does not wait after a read."""
        with self._lock:
            # Damage that SQLite does not detect shows as a wrong value.
            broken = (sqlite3.Error, UnicodeDecodeError) if write else (sqlite3.Error, TypeError, ValueError)
            try:
                with self._db:  # commits, or rolls back
                    self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                    yield self._db
            except broken as error:
                raise self._failed(error) from error

    def _failed(self, error: Exception) -> SweError:
        return SweError(
            f"the training journal {str(self._path)!r} failed: {sentence(error)}; see that its disk has "
            "space and that the file is whole, then resume the run"
        )


def _members(db: sqlite3.Connection, group: int) -> Iterator[Member]:
    for key, rollout_id, attempt, reward, oldest, newest, overlong in db.execute(
        "SELECT id, rollout_id, attempt, reward, oldest, newest, overlong FROM members "
        "WHERE group_id = ? ORDER BY id",
        (group,),
    ).fetchall():
        chains = tuple(
            read_chain(*columns)
            for columns in db.execute(
                "SELECT ids, mask, logprobs, versions, turns, cause "
                "FROM chains WHERE member_id = ? ORDER BY id",
                (key,),
            )
        )
        yield Member(rollout_id, attempt, reward, chains, oldest, newest, bool(overlong))
