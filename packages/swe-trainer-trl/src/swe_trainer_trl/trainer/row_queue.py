"""RowBuffer: the trainer's queue of rows, which keeps track of the rows that it handed out."""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swe_core.api.engine import ForkCause
from swe_trainer_trl.compat import RolloutSample
from swe_trainer_trl.normalization import Part


class RowsEnded(Exception):
    """No more rows will come: every group of the training is closed, and its rows were handed out."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One row for the trainer.

    Args:
        row_id: Its id in the journal.
        group: Number of its group.
        part: The part of its rollout that it trains.
        version: Updates of the oldest policy of its group.
        sample: The row in TRL's form.
        chain: Index of the row among the chains of its rollout.
        cause: Why the chain began.
        advantage: Advantage of its rollout. That of `sample` is weighted.
    """

    row_id: int
    group: int
    part: Part
    version: int
    sample: RolloutSample
    chain: int
    cause: ForkCause
    advantage: float


_END: Any = object()
"""Stands behind the last row in the buffer."""


class RowBuffer(queue.Queue[Any]):
    """`RolloutWorkerProtocol.rollout_buffer`.

    A group enters as a whole, and leaves as a whole or not at all. When the trainer asks for the first row of
    a group, TRL's own rule (`version - row's version > max_staleness`) decides whether the group is too old.
    A weight sync between two of its rows changes nothing. So the trainer trains every row that it gets, in
    order, and the journal can record which rows were trained.

    Attributes:
        shared: Whether `get` divides the advantage of each row by the trained ids of its whole rollout. This
            is for a trainer that applies `swe_trainer_trl.normalization`, unlike TRL's own.

    Args:
        maxsize: Number of rows from which no further group enters; 0 for no limit.
        version: Returns the current version of the policy.
        max_staleness: How many updates a group may be behind.
        stale: Called with each row that is left out as too old.
        taken: Called with the number of a group after the trainer has asked for all its rows.
        ahead: Returns the number of versions that were no update. They do not make a waiting row older.
    """

    def __init__(
        self,
        maxsize: int,
        version: Callable[[], int],
        max_staleness: int,
        stale: Callable[[Item], None],
        taken: Callable[[int], None],
        ahead: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(maxsize)
        self.shared = False
        self._version = version
        self._max_staleness = max_staleness
        self._stale = stale
        self._taken = taken
        self._ahead = ahead
        self._waiting: Counter[int] = Counter()
        self._handed: deque[Item] = deque()
        self._begun: int | None = None
        self._over = False

    def put_group(self, items: Sequence[Item], timeout: float) -> bool:
        """Add a whole group, even beyond `maxsize`, as soon as there is room for its first row.

        Args:
            items: The rows of the group.
            timeout: Seconds to wait for room.

        Returns:
            Whether the group was added in time.
        """
        until = time.monotonic() + timeout
        with self.not_full:
            while self.maxsize > 0 and self._qsize() >= self.maxsize:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self.not_full.wait(left)
            for item in items:
                self._put(item)
                self._waiting[item.group] += 1
            self.unfinished_tasks += len(items)
            self.not_empty.notify(len(items))
        return True

    def end(self) -> None:
        """Let `get` raise `RowsEnded` after the last row that is in the buffer."""
        with self.not_empty:
            self._put(_END)
            self.not_empty.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> RolloutSample:
        """Return the next row that is fresh.

        Raises:
            queue.Empty: No fresh row came in time.
            RowsEnded: There are no more rows.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if self._over or (item := super().get(block, left)) is _END:
                self._over = True
                raise RowsEnded
            self._waiting[item.group] -= 1
            if not self._waiting[item.group]:
                del self._waiting[item.group]
                self._taken(item.group)
            oldest = self._version() - self._max_staleness
            version = item.version + self._ahead()
            if item.group != self._begun:
                if version < oldest:
                    self._stale(item)
                    continue
                self._begun = item.group
            # TRL would drop an older row, and train half a group.
            item.sample.model_version = max(version, oldest)
            self._handed.append(item)
            if self.shared:
                item.sample.advantage /= item.part.whole
            return item.sample

    def handed(self, tokens: int) -> list[Part]:
        """Return the parts that the trainer is about to train.

        They are the next rows in the order in which they were handed out.

        Args:
            tokens: Number of trained ids of these rows.

        Raises:
            ValueError: The number does not match whole rows.
        """
        return [item.part for item in self._next(tokens)]

    def row_of(self, input_ids: object) -> int:
        """Return the journal's id of the row that was handed out with this very array.

        Raises:
            LookupError: No such row is to be trained.
        """
        return self._item_of(input_ids).row_id

    def share_of(self, input_ids: object) -> float:
        """Return by how much `get` multiplied the advantage of the row with this very array.

        Raises:
            LookupError: No such row is to be trained.
        """
        return 1 / self._item_of(input_ids).part.whole if self.shared else 1.0

    def trained(self, tokens: int) -> list[Item]:
        """Remove the rows that have been trained, and return them.

        They are the next rows in the order in which they were handed out.

        Args:
            tokens: Number of trained ids of these rows.

        Raises:
            ValueError: The number does not match whole rows.
        """
        items = self._next(tokens)
        for _ in items:
            self._handed.popleft()
        return items

    def _item_of(self, input_ids: object) -> Item:
        for item in self._handed:
            if item.sample.input_ids is input_ids:
                return item
        raise LookupError("the trainer has a row that it was not given")

    def _next(self, tokens: int) -> list[Item]:
        items = []
        for item in self._handed:
            if tokens <= 0:
                break
            tokens -= item.part.tokens
            items.append(item)
        if tokens:
            raise ValueError(
                f"a step trains {abs(tokens)} ids {'more' if tokens > 0 else 'less'} than the rows have "
                "that the trainer was given, so it is not known which of them it trains"
            )
        return items
