"""RowBuffer: the queue that the trainer drains, which knows what it has handed out."""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swe_trainer_trl.compat import RolloutSample
from swe_trainer_trl.normalization import Part


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One row on its way to the trainer.

    Args:
        row_id: Its id in the journal.
        part: What it trains of its rollout.
        version: The policy's when it was sampled, of versions that are updates.
    """

    row_id: int
    group: int
    part: Part
    version: int
    sample: RolloutSample


class RowBuffer(queue.Queue[Any]):
    """`RolloutWorkerProtocol.rollout_buffer`.

    A group goes in as a whole, and out as a whole or not at all: when the trainer asks for its first row,
    TRL's own rule (`version - row's version > max_staleness`) says whether the group is too old, and a weight
    sync between two of its rows changes nothing. So the trainer trains every row that it gets, in the order
    in which it got them: this is how the journal knows what was trained.

    Attributes:
        shared: Whether each row's advantage is handed out divided by the trained ids of its whole rollout,
            for a trainer that goes on from there (`swe_trainer_trl.normalization`), which TRL's own does not.

    Args:
        maxsize: Rows from which on no further group goes in.
        version: The policy's version now.
        stale: Told of a row that was left out.
        taken: Told of a group whose rows have all been asked for.
        ahead: How many of the policy's versions were no update: what waits is no older for them.
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

    def put_group(self, items: Sequence[Item], timeout: float) -> bool:
        """Put a whole group in, even beyond `maxsize`, once there is room for its first row.

        Returns:
            Whether there was room in time.
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

    def get(self, block: bool = True, timeout: float | None = None) -> RolloutSample:
        """The next row that is fresh.

        Raises:
            queue.Empty: There is none in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            item: Item = super().get(block, left)
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
            # TRL would leave out an older one, and train half a group.
            item.sample.model_version = max(version, oldest)
            self._handed.append(item)
            if self.shared:
                item.sample.advantage /= item.part.whole
            return item.sample

    def handed(self, tokens: int) -> list[Part]:
        """Which rows the trainer is about to train, of those handed out: the next ones with so many trained
        ids in all.

        Raises:
            ValueError: It has other rows, or not whole ones.
        """
        return [item.part for item in self._next(tokens)]

    def trained(self, tokens: int) -> list[int]:
        """Which rows have been trained, of those handed out: the next ones with so many trained ids in all.

        Returns:
            Their ids in the journal.

        Raises:
            ValueError: The trainer trained other rows, or not whole ones.
        """
        items = self._next(tokens)
        for _ in items:
            self._handed.popleft()
        return [item.row_id for item in items]

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
