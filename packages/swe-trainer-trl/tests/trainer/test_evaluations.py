"""When the trainer evaluates its policy, with the journal and without a rollout process."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swe_trainer_trl.journal.journal import BegunEvaluation, Journal

if TYPE_CHECKING:
    from swe_trainer_trl.trainer.evaluations import Evaluations


class Worker:
    """Finishes an evaluation when the trainer waits for it."""

    def __init__(self, journal: Journal) -> None:
        self.version = 0
        self.begun: list[BegunEvaluation] = []
        self.evaluations: deque[dict[str, Any]] = deque()
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._journal = journal

    def evaluate(self, evaluation: BegunEvaluation) -> None:
        self.begun.append(evaluation)

    def finish_evaluations(self, stale_after_s: float) -> None:
        for evaluation in self._journal.open_evaluations():
            self._journal.finish_evaluation(evaluation.id)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "train.sqlite")
    yield journal
    journal.close()


def started(journal: Journal, every: int) -> tuple[Worker, Evaluations]:
    from swe_trainer_trl.trainer.evaluations import Evaluations  # imports TRL, which takes seconds

    worker = Worker(journal)
    # The worker is a stand-in that remembers what it is asked.
    return worker, Evaluations(worker, journal, every)  # type: ignore[arg-type]


def train(worker: Worker, evaluations: Evaluations, sent: Sequence[int]) -> list[int]:
    """Send the weights of these steps; the steps that are evaluated then."""
    before = len(worker.begun)
    for step in sent:
        worker.version += 1
        evaluations.weights_sent(step)
    return [one.step for one in worker.begun[before:]]


@pytest.mark.parametrize(
    ("every", "sent", "evaluated"),
    [
        (3, range(11), [0, 3, 6, 9]),
        (3, [0, 4, 8, 12, 14], [0, 4, 8, 12]),  # sent more rarely
        (2, [0, 0, 2, 2, 3], [0, 2]),  # sent again, as to a server that was started again
    ],
)
def test_first_weights_and_those_of_every_n_steps_are_evaluated(
    journal: Journal, every: int, sent: Sequence[int], evaluated: list[int]
) -> None:
    worker, evaluations = started(journal, every)
    assert train(worker, evaluations, sent) == evaluated
    assert [one.version for one in worker.begun] == [1 + sent.index(step) for step in evaluated]


def test_last_weights_are_evaluated_once(journal: Journal) -> None:
    worker, evaluations = started(journal, every=5)
    train(worker, evaluations, [0, 5])
    assert not evaluations.are_complete(5)
    evaluations.finish(5, 1.0)
    assert evaluations.are_complete(5)
    evaluations.finish(7, 1.0)
    assert [one.step for one in worker.begun] == [0, 5, 7]
    assert evaluations.are_complete(7)
    assert not evaluations.are_complete(9)


def test_two_evaluations_that_finish_together_have_a_log_each(journal: Journal) -> None:
    worker, evaluations = started(journal, every=2)
    worker.evaluations.extend([{"eval/step": 2.0}, {"eval/step": 4.0}])
    for step, left in ((2.0, 1), (4.0, 0)):
        evaluations.report()
        assert worker.metrics_queue.get_nowait() == {"eval/step": step}
        assert worker.metrics_queue.empty()
        assert evaluations.unreported == left
    evaluations.report()
    assert worker.metrics_queue.empty()


def test_resume_goes_on_from_the_evaluations_that_are_not_lost(journal: Journal) -> None:
    """And begins one that a kill prevented, after a checkpoint and before its weights were sent."""
    worker, evaluations = started(journal, every=2)
    train(worker, evaluations, [0, 2, 4, 6])
    journal.rewind(3)
    worker, evaluations = started(journal, every=2)
    assert train(worker, evaluations, [3, 4, 5, 6]) == [4, 6]
    assert [one.name for one in worker.begun] == ["eval4.2", "eval6.2"]
    train(worker, evaluations, [7])
    worker, evaluations = started(journal, every=2)
    assert train(worker, evaluations, [8]) == [8]
