"""RowBuffer: whole groups in, fresh rows out, and which of them were trained."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:  # imports TRL, which takes seconds
    from swe_trainer_trl.compat import RolloutSample
    from swe_trainer_trl.trainer.row_queue import Item

PATIENCE = 60.0
"""Seconds until a test that hangs fails."""


def item(row: int, group: int = 0, tokens: int = 3, version: int = 0) -> Item:
    from swe_trainer_trl.compat import make_sample
    from swe_trainer_trl.normalization import Part
    from swe_trainer_trl.trainer.row_queue import Item

    mask = (np.arange(tokens + 1) > 0).astype(np.int64)
    sample = make_sample(
        prompt=[], completion=[], input_ids=np.full(tokens + 1, row, np.int64), completion_mask=mask,
        old_log_probs=np.zeros(tokens + 1, np.float32), advantage=1.0, model_version=version, group_id=group,
        metrics={},
    )  # fmt: skip
    return Item(row, group, Part("r", tokens, tokens), version, sample, 0, "start", 1.0)


def row_of(sample: RolloutSample) -> int:
    return int(sample.input_ids[0])


@dataclass
class Bench:
    """A buffer and what it told."""

    maxsize: int = 0
    version: int = 0
    max_staleness: int = 2
    stale: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        from swe_trainer_trl.trainer.row_queue import RowBuffer

        self.buffer = RowBuffer(
            self.maxsize,
            lambda: self.version,
            self.max_staleness,
            lambda item: self.stale.append(item.row_id),
            self.taken.append,
        )

    def put(self, *items: Item) -> bool:
        return self.buffer.put_group(items, 0)

    def trained(self, tokens: int) -> list[int]:
        return [item.row_id for item in self.buffer.trained(tokens)]

    def get(self) -> int | None:
        """The row that is handed out now; None where there is none."""
        try:
            sample = self.buffer.get_nowait()
        except queue.Empty:
            return None
        assert self.version - sample.model_version <= self.max_staleness  # or TRL would leave it out
        return row_of(sample)


@pytest.mark.parametrize("version", [0, 9])
def test_queue_has_the_trainers_interface(version: int) -> None:
    """A row that is stale does not prolong the wait."""
    from swe_trainer_trl.compat import RolloutSample

    bench = Bench(version=version)
    assert isinstance(bench.buffer, queue.Queue)
    bench.put(item(1))
    assert bench.buffer.qsize() == 1
    if not version:
        sample = bench.buffer.get(timeout=0.0)
        assert isinstance(sample, RolloutSample)
        assert row_of(sample) == 1
    with pytest.raises(queue.Empty):
        bench.buffer.get(timeout=0.0)
    assert (bench.stale, bench.taken) == ([1] if version else [], [0])


def test_group_enters_as_a_whole_with_room_for_its_first_row() -> None:
    bench = Bench(maxsize=2)
    assert bench.put(item(1))
    assert bench.put(item(2, 1), item(3, 1), item(4, 1))  # beyond the bound
    assert not bench.put(item(5, 2))
    assert bench.buffer.qsize() == 4
    assert [bench.get() for _ in range(3)] == [1, 2, 3]
    assert bench.put(item(5, 2))
    assert [bench.get() for _ in range(3)] == [4, 5, None]


def test_waiting_producer_continues_when_a_row_is_taken() -> None:
    bench = Bench(maxsize=1)
    bench.put(item(1))
    put: list[bool] = []
    waiting = threading.Thread(target=lambda: put.append(bench.buffer.put_group([item(2, 1)], PATIENCE)))
    waiting.start()
    assert row_of(bench.buffer.get(timeout=PATIENCE)) == 1
    waiting.join(PATIENCE)
    assert put == [True]
    assert bench.get() == 2


def test_group_wakes_all_waiting_readers() -> None:
    bench = Bench()
    got: list[int] = []

    def take() -> None:
        got.append(row_of(bench.buffer.get(timeout=PATIENCE)))

    takers = [threading.Thread(target=take) for _ in range(3)]
    for taker in takers:
        taker.start()
    while len(bench.buffer.not_empty._waiters) < 3:
        time.sleep(0.001)
    bench.put(item(1), item(2), item(3))
    for taker in takers:
        taker.join(PATIENCE)
    assert sorted(got) == [1, 2, 3]


def test_row_is_known_by_its_array_until_it_is_trained() -> None:
    bench = Bench()
    first, second, waiting = item(1), item(2), item(3)
    bench.put(first, second, waiting)
    for _ in range(2):
        bench.get()
    assert bench.buffer.row_of(second.sample.input_ids) == 2
    bench.trained(3)
    assert bench.buffer.row_of(second.sample.input_ids) == 2
    for other in (first.sample.input_ids, waiting.sample.input_ids, second.sample.input_ids.copy()):
        with pytest.raises(LookupError):
            bench.buffer.row_of(other)


@pytest.mark.parametrize(("tokens", "says"), [(4, "1 ids less than"), (13, "6 ids more than")])
def test_step_of_other_rows_is_said(tokens: int, says: str) -> None:
    bench = Bench()
    bench.put(item(1, tokens=2), item(2, tokens=3), item(3, tokens=2))
    for _ in range(3):
        bench.get()
    with pytest.raises(ValueError, match=says):
        bench.buffer.trained(tokens)


Group = tuple[int, Sequence[int]]
"""Policy version, and the trained ids of each row."""
groups = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=4)), max_size=8
)


@settings(deadline=None)
@given(groups, st.data())
def test_each_row_that_is_handed_out_comes_back_once_in_order(made: list[Group], data: st.DataObject) -> None:
    """Whatever the order of putting, taking, training and new versions; what is not handed out was stale, and
    a group is handed out whole or not at all."""
    bench = Bench(maxsize=5, max_staleness=1)
    waiting = list(enumerate(made))
    put, handed, trained, counts = [], [], [], {}
    rows, stale_by_rule = 0, []
    versions: dict[int, int] = {}
    group_of: dict[int, int] = {}
    while waiting or bench.buffer.qsize() or len(trained) < len(handed):
        steps = ["version"] if bench.version < 7 else []
        steps += ["put"] if waiting and bench.buffer.qsize() < 5 else []
        steps += ["get"] if bench.buffer.qsize() else []
        steps += ["train"] if len(trained) < len(handed) else []
        step = data.draw(st.sampled_from(steps))
        if step == "version":
            bench.version += 1
        elif step == "put":
            group, (version, sizes) = waiting.pop(0)
            items = [item(rows + n, group, size, version) for n, size in enumerate(sizes)]
            assert bench.put(*items)
            for one in items:
                put.append(one.row_id)
                counts[one.row_id] = one.part.tokens
                versions[one.row_id] = version
                group_of[one.row_id] = group
            rows += len(items)
        elif step == "get":
            left_out = len(bench.stale)
            row = bench.get()
            if row is not None:
                begins = group_of[row] not in {group_of[other] for other in handed}
                assert not begins or bench.version - versions[row] <= 1
                handed.append(row)
            stale_by_rule += [r for r in bench.stale[left_out:] if bench.version - versions[r] > 1]
        else:
            count = data.draw(st.integers(1, len(handed) - len(trained)))
            step_rows = handed[len(trained) : len(trained) + count]
            trained += (got := bench.trained(sum(counts[row] for row in step_rows)))
            assert got == step_rows
    assert trained == handed
    assert stale_by_rule == bench.stale
    assert sorted(handed + bench.stale) == put
    assert handed == sorted(handed)
    assert not {group_of[row] for row in handed} & {group_of[row] for row in bench.stale}
    assert bench.taken == list(range(len(made)))
