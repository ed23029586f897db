"""The durable queue between rollouts and trainer: groups, their attempts, their rows, and what was trained.

One SQLite file, used by two processes at once: the one that runs rollouts adds groups and members, the
trainer takes rows and marks them. Every method is one transaction that is on disk when it returns
(write-ahead log, `synchronous=FULL`), so what a killed process was told is there, and nothing is half there.
A method that writes waits for the disk: call it from a thread, not from an event loop.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from swe_core.errors import SweError, UsageError, sentence
from swe_trainer_trl.journal.arrays import arrays, blobs, count, read_chain
from swe_trainer_trl.journal.groups import Assessed, Member, Row
from swe_trainer_trl.journal.statements import (
    APPLICATION,
    EMPTY,
    FATES,
    FORMAT,
    RAISE,
    READY,
    SCHEMA,
    TRAINED,
)

_BUSY_TIMEOUT = 60.0  # seconds that one process waits for the other's transaction
_OF_MEMBER = attrgetter("rollout_id", "attempt", "reward", "oldest", "newest")

JOURNAL = "train.sqlite"
"""The file in the run directory."""
Dropped = Literal["stale", "too_long"]
"""Why the trainer did not train a row: its policy was too old; it is longer than the token budget."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenGroup:
    """A group that was begun and is not closed.

    Args:
        id: Its number in the order in which groups were begun, from 0.
        task_id: The task that its members attempt.
        size: Attempts that it is to have.
        members: Those that are finished, in the order in which they did.
    """

    id: int
    task_id: str
    size: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReadyGroup:
    """A closed group with rows to train.

    Args:
        id: Its number.
        closed: Its place in the order in which groups were closed, which is not that of their numbers.
        rows: Each row that is neither trained nor dropped, with the id to mark it by.
        trained: Rollout → ids of its other rows, which are trained already.
    """

    id: int
    closed: int
    rows: list[tuple[int, Row]]
    trained: dict[str, int]


@dataclass(frozen=True, slots=True)
class Tokens:
    """What became of the trainable ids of finished attempts.

    Args:
        trained: In rows that an optimizer step has trained.
        waiting: In rows or attempts that are neither trained nor dropped.
        dropped: Reason → ids: why a group was skipped, an attempt left out, or a row not trained.
    """

    trained: int
    waiting: int
    dropped: dict[str, int]


class Journal:
    """The journal of a run, opened; made where there is none. Threads may share it.

    Args:
        path: The file. SQLite keeps two more beside it while it is open.

    Raises:
        UsageError: The file is something else, or of another format version.
        SweError: It cannot be opened or made. Every method raises this where the file is damaged, the disk is
            full, or the other process holds the file for a minute.
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
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        with self._transaction() as db:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (objects,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if (application, version, objects) == (0, 0, 0):
                for statement in SCHEMA.split(";"):
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
                    f"swe-trainer-trl works with format {FORMAT}; go on with the one that wrote it, or start "
                    "a new run"
                )
        # None of these can be set inside a transaction.
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file; nothing is pending."""
        with self._lock:
            self._db.close()

    # --- the rollouts' side ---

    def open_group(self, task_id: str, size: int) -> int:
        """Begin a group of `size` attempts of a task.

        Returns:
            Its number: they count up from 0, over all of the run's processes.
        """
        with self._transaction() as db:
            (group,) = db.execute("SELECT count(*) FROM groups").fetchone()
            db.execute("INSERT INTO groups (id, task_id, size) VALUES (?, ?, ?)", (group, task_id, size))
        return int(group)

    def add_member(self, group: int, member: Member) -> None:
        """Keep a finished attempt of an open group."""
        with self._transaction() as db:
            added = db.execute(
                "INSERT INTO members (group_id, rollout_id, attempt, reward, oldest, newest) "
                "VALUES (?, ?, ?, ?, ?, ?)",
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
        """Hand the group's rows to the trainer, or keep why there are none.

        Raises:
            SweError: It is not open: its rows would be trained twice.
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
            db.execute(
                "UPDATE groups SET left_out = (SELECT total(tokens) FROM chains WHERE member_id IN "
                "(SELECT id FROM members WHERE group_id = ?1)) - ?2 WHERE id = ?1",
                (group, in_rows),
            )
            db.execute("DELETE FROM members WHERE group_id = ?", (group,))
            db.executemany(
                "INSERT INTO rows "
                "(group_id, rollout_id, ids, mask, logprobs, advantage, policy_update, reward, tokens) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        group,
                        row.rollout_id,
                        *blobs(row.input_ids, row.completion_mask, row.old_log_probs),
                        row.advantage,
                        row.update,
                        row.reward,
                        count(row.completion_mask),
                    )
                    for row in assessed.rows
                ],
            )

    def unfinished(self) -> list[OpenGroup]:
        """The groups that were begun and are not closed, in order: what a resumed run goes on with."""
        with self._transaction(write=False) as db:
            groups = db.execute(
                "SELECT id, task_id, size FROM groups WHERE closed IS NULL ORDER BY id"
            ).fetchall()
            return [
                OpenGroup(group, task_id, size, tuple(_members(db, group))) for group, task_id, size in groups
            ]

    def groups_begun(self) -> int:
        """How many groups were begun: the number of the next one."""
        with self._transaction(write=False) as db:
            (begun,) = db.execute("SELECT count(*) FROM groups").fetchone()
            return int(begun)

    # --- the trainer's side ---

    def ready(self, after: int = -1, limit: int = 1) -> list[ReadyGroup]:
        """Closed groups with rows that are neither trained nor dropped, in the order of closing.

        Args:
            after: `ReadyGroup.closed` of the last one taken; -1 for all. A row that was taken and not marked
                comes again when it is asked for, say by the next process.
            limit: How many groups at most: their tokens are in memory.
        """
        groups: dict[int, ReadyGroup] = {}
        with self._transaction(write=False) as db:
            for group, closed, key, rollout_id, ids, mask, logprobs, advantage, update, reward in db.execute(
                READY, (after, limit)
            ):
                row = Row(rollout_id, *arrays(ids, mask, logprobs), advantage, update, reward)
                if group not in groups:
                    groups[group] = ReadyGroup(group, closed, [], dict(db.execute(TRAINED, (group,))))
                groups[group].rows.append((key, row))
        return list(groups.values())

    def mark_trained(self, row_ids: Iterable[int], step: int) -> None:
        """Keep that these rows were in the optimizer step number `step`, from 1."""
        with self._transaction() as db:
            db.executemany("UPDATE rows SET step = ? WHERE id = ?", [(step, row) for row in row_ids])

    def forget(self, step: int) -> None:
        """No checkpoint from before `step` will be gone on with: the ids of rows trained by then can go."""
        with self._transaction() as db:
            db.execute(f"UPDATE rows SET {EMPTY} WHERE step <= ? AND ids != x''", (step,))

    def drop(self, row_ids: Iterable[int], why: Dropped) -> None:
        """Keep that these rows are never trained; their tokens are not needed any more."""
        with self._transaction() as db:
            rows = [(why, row) for row in row_ids]
            db.executemany(f"UPDATE rows SET dropped = ?, {EMPTY} WHERE id = ?", rows)

    def rewind(self, step: int) -> None:
        """Go back to the checkpoint of `step` (0: to the model that training began with), before anything is
        taken: the rows of later steps were lost with the weights, and are free again. Those that are dropped
        or forgotten are not: their ids are gone.
        """
        with self._transaction() as db:
            db.execute("UPDATE rows SET step = NULL WHERE step > ? AND ids != x''", (step,))

    def groups_done(self) -> int:
        """How many groups are behind the trainer: closed, with no row to train (any more)."""
        with self._transaction(write=False) as db:
            (done,) = db.execute(
                "SELECT count(closed) - (SELECT count(DISTINCT group_id) FROM rows "
                "WHERE step IS NULL AND dropped IS NULL) FROM groups"
            ).fetchone()
            return int(done)

    def tokens(self) -> Tokens:
        """What became of the trainable ids of all finished attempts."""
        found = Counter[str]()
        with self._transaction(write=False) as db:
            for fate, tokens in db.execute(FATES):
                found[fate] += int(tokens)
        return Tokens(found.pop("trained", 0), found.pop("waiting", 0), dict(+found))

    def raise_version(self, version: int, step: int | None = None, *, again: bool = False) -> None:
        """Keep that there is, or may be, a policy of this version; one that is not above all others changes
        nothing.

        Args:
            step: How many optimizer steps made its weights; None where nobody will go on with them.
            again: They are no update, but those that an earlier process had sent by that step.
        """
        with self._transaction() as db:
            db.execute(RAISE, {"version": version, "step": step, "again": again})

    @property
    def version(self) -> int:
        """The highest policy version of this run so far, announced or about to be; 0 before the first."""
        return max(self.updates(), default=0)

    def updates(self) -> dict[int, int]:
        """Policy version → how many updates its weights had, from 1: the age of what it sampled. Two versions
        have the same where a run was resumed."""
        with self._transaction(write=False) as db:
            return dict(db.execute("SELECT version, updates FROM policies"))

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing. A writer takes its turn at the beginning, since SQLite does
        not wait for one that has read before.
        """
        with self._lock:
            # Damage that SQLite does not see is a value that is not what was written.
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
    for key, rollout_id, attempt, reward, oldest, newest in db.execute(
        "SELECT id, rollout_id, attempt, reward, oldest, newest FROM members WHERE group_id = ? ORDER BY id",
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
        yield Member(rollout_id, attempt, reward, chains, oldest, newest)
