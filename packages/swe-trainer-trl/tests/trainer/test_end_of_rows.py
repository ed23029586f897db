"""The end of a training: its last step takes the rows that are left, and it waits for no row beyond."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swe_testing.serving.start import missing
from swe_trainer_trl.journal.journal import Journal

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def source(count: int, *, ends: bool = True) -> Iterator[dict[str, Any]]:
    """Rows of three ids, as TRL's data set yields them. The row after the last one is never asked for."""
    from swe_trainer_trl.trainer.row_queue import RowsEnded

    for number in range(count):
        ids, mask = np.array([number, 900, 901]), np.array([0, 1, 1])
        yield {"input_ids": ids, "completion_mask": mask, "group_id": number}
    if ends:
        raise RowsEnded
    raise AssertionError("more rows were asked for than are needed")


def cut(
    count: int,
    size: int,
    *,
    budget: int = 0,
    processes: int = 1,
    most: int = 99,
    left: list[Any] | None = None,
) -> list[list[int]]:
    """The rows of each micro-batch, by their numbers: of `size` rows, or packed up to `budget` ids.

    `left` gets those that are too few for all processes.
    """
    from swe_trainer_trl import compat
    from swe_trainer_trl.trainer.end_of_rows import EndingBatches

    module, left = compat.trainer_module, [] if left is None else left
    rows = source(count, ends=most == 99)
    planner = module.FixedCountBatcher(rows, processes, size)
    if budget:
        planner = module.TokenBudgetBatcher(rows, processes, budget, {})
    return [
        sorted(int(row["input_ids"][0]) for of_process in batch for row in of_process.samples)
        for batch in EndingBatches(planner, lambda: most, left.extend)
    ]


def test_last_micro_batch_has_the_rows_that_are_left() -> None:
    assert cut(5, 2) == [[0, 1], [2, 3], [4]]
    assert cut(4, 2) == [[0, 1], [2, 3]]
    assert cut(5, 0, budget=6) == [[0, 1], [2, 3], [4]]
    assert cut(1, 0, budget=99) == [[0]]
    assert cut(0, 2) == cut(0, 0, budget=9) == []


def test_each_process_has_a_row_or_the_last_micro_batch_is_left_out() -> None:
    assert cut(7, 4, processes=2) == [[0, 1, 2, 3], [4, 5, 6]]
    left: list[Any] = []
    assert cut(5, 4, processes=2, left=left) == [[0, 1, 2, 3]]
    assert [int(row["input_ids"][0]) for row in left] == [4]


def test_last_micro_batch_keeps_the_token_budget() -> None:
    """Groups stay together only where they fit."""
    assert cut(5, 0, budget=9, processes=2) == [[0, 1, 2, 3, 4]]
    assert cut(9, 0, budget=6, processes=2) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_row_is_asked_for_beyond_the_last_step() -> None:
    assert cut(4, 2, most=2) == [[0, 1], [2, 3]]


@pytest.fixture
def trained(tiny_model: Path, tmp_path: Path) -> Any:
    """Trains the twelve rows of `two_steps` to their end: the journal's step of each row, and the logs."""
    from ..two_steps import GROUPS, Worker, rows, trainer_of

    def train(*, some: bool = True, **settings: Any) -> tuple[list[int | None], list[dict[str, Any]]]:
        journal = Journal(tmp_path / "train.sqlite")
        worker = Worker(rows(str(tiny_model)) if some else [], journal)
        worker.rollout_buffer.end()
        trainer = trainer_of(worker, journal, str(tiny_model), tmp_path, GROUPS, **settings)
        trainer.train()
        assert trainer.args.gradient_accumulation_steps == settings["gradient_accumulation_steps"]
        last = tmp_path / "checkpoints" / f"checkpoint-{trainer.state.global_step}"
        assert (last / "trainer_state.json").exists() == some
        with journal._transaction(write=False) as db:
            steps = [step for (step,) in db.execute("SELECT step FROM rows ORDER BY id")]
        journal.close()
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        logged = [json.loads(line)["values"] for line in lines]
        return steps, [values for values in logged if "loss" in values]

    return train


@pytest.mark.parametrize(
    ("rows", "accumulated", "steps"),
    [
        pytest.param(1, 5, [1] * 5 + [2] * 5 + [3] * 2, id="fewer micro-batches", marks=pytest.mark.slow),
        pytest.param(1, 99, [1] * 12, id="less than one step"),
        pytest.param(5, 2, [1] * 10 + [2] * 2, id="both"),
    ],
)
def test_last_step_trains_the_rows_that_are_left(
    trained: Any, rows: int, accumulated: int, steps: list[int]
) -> None:
    found, logged = trained(
        token_budget=0, per_device_train_batch_size=rows, gradient_accumulation_steps=accumulated
    )
    assert found == steps
    sizes = [steps.count(step) for step in range(1, steps[-1] + 1)]
    assert [values["batch/samples_per_step"] for values in logged] == pytest.approx(sizes)
    assert all(values["grad_norm"] > 0 for values in logged)


@pytest.mark.slow
def test_packed_rows_are_trained_to_the_last_one(trained: Any) -> None:
    found, _ = trained(token_budget=60, gradient_accumulation_steps=2)
    assert None not in found


@pytest.mark.slow
def test_training_without_a_row_ends(trained: Any) -> None:
    """As a resumed one, whose rows were trained and whose last groups were skipped."""
    found, logged = trained(some=False, token_budget=0, gradient_accumulation_steps=1)
    assert found == logged == []
