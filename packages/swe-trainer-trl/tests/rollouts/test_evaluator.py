"""Evaluations while training: rollouts on held-out tasks beside those of groups, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import pytest

from swe_core.errors import SweError
from swe_core.rollout.training_records import EVALUATIONS_FILE, read_evaluations
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts.evaluator import metrics_of
from swe_trainer_trl.rollouts.messages import Back, Evaluate, Finish, Lost, Version
from swe_trainer_trl.rollouts.slots import Slots

from ..journal.test_journal import fates
from ..scripted_rollouts import OPTIONS
from .in_memory import URLS, Feeding, place_of

Make = Callable[..., Feeding]


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Make]:
    """A feeder whose attempts in evaluations end as `ends` says, by their place; those of groups go on."""
    made: list[Feeding] = []

    def make(ends: dict[str, str], *, attempts: int = 1, held_out: int = 1, **options: Any) -> Feeding:
        chosen = OPTIONS.model_copy(update={"eval_attempts": attempts, "groups_ahead": 1, **options})
        feeding = Feeding(tmp_path, chosen, tasks=1 + held_out, held_out=held_out)
        feeding.rollouts.concurrency = 9
        feeding.rollouts.ends = lambda name: ends.get(place_of(name))
        made.append(feeding)
        feeding.start()
        return feeding

    yield make
    for one in made:
        one.close()


def begin(feeding: Feeding, step: int, version: int = 1) -> Evaluate:
    """What the trainer does: an entry in the journal, and the command."""
    return Evaluate(**asdict(feeding.journal.begin_evaluation(step, version)))


def lines(path: Path) -> list[tuple[int, ...]]:
    found = read_evaluations(path)
    return [(one.step, one.rollouts, one.verdicts, one.resolved, one.errors) for one in found]


def of(feeding: Feeding) -> dict[str, str]:
    """The ends of its attempts in evaluations."""
    return {name: end for name, end in feeding.outcomes().items() if name.startswith("eval")}


def test_evaluation_has_its_own_attempts_records_and_metrics(feed: Make, tmp_path: Path) -> None:
    """One attempt is resolved, one is not, one fails; a group runs meanwhile, on another task."""
    feeding = feed({"eval0/0": "resolved", "eval0/1": "unresolved", "eval0/2": "agent"}, attempts=3)
    feeding.say(begin(feeding, 0))
    assert of(feeding) == {"eval0/0": "resolved", "eval0/1": "unresolved", "eval0/2": "error"}
    assert feeding.journal.open_evaluations() == []
    assert feeding.journal.last_evaluation() == 0
    assert fates(feeding.journal) == {}  # nothing of it is trained or waits
    (line,) = read_evaluations(tmp_path)
    assert (line.step, line.version, line.oldest, line.newest) == (0, 1, 1, 1)
    assert (line.rollouts, line.verdicts, line.resolved, line.errors, line.reward) == (3, 2, 1, 1, 0.5)
    (report,) = feeding.evaluated
    assert report.values == metrics_of(line)
    assert report.values["eval/resolved_rate"] == (1.0, 2.0)
    (task,) = feeding.held_out
    assert {one.id for one in feeding.rollouts.rollouts()} == {f"{task}-eval0-{n}" for n in range(3)}
    trained = list(feeding.rollouts.running.values())
    assert {one.request.evaluation for one in trained} == {None}
    assert task not in {one.request.task.instance_id for one in trained}


def test_evaluation_gets_the_next_free_slot(feed: Make) -> None:
    """Attempts of groups have waited longer."""
    feeding = feed({}, groups_ahead=9)
    assert len(feeding.rollouts.running) == 9
    first = next(iter(feeding.rollouts.running))
    feeding.say(begin(feeding, 0))
    feeding.rollouts.finish(first, "agent")
    feeding.do()
    assert [place_of(name) for name in feeding.rollouts.running][-1] == "eval0/0"


def test_evaluation_is_never_stale_and_says_which_versions_answered(feed: Make, tmp_path: Path) -> None:
    feeding = feed({}, max_staleness=0)
    feeding.say(begin(feeding, 0))
    (name,) = (name for name in feeding.rollouts.running if "eval" in name)
    feeding.rollouts.answer(name)
    feeding.say(Version(version=2, updates=2), Version(version=3, updates=3))
    feeding.rollouts.answer(name)
    feeding.rollouts.finish(name, "resolved")
    feeding.do()
    (line,) = read_evaluations(tmp_path)
    assert (line.version, line.oldest, line.newest) == (1, 1, 3)


def test_interrupted_evaluation_is_completed_and_a_finished_one_is_not_repeated(
    feed: Make, tmp_path: Path
) -> None:
    ends = {"eval0/0": "resolved", "eval0/1": "unresolved", "eval5/0": "resolved"}
    feeding = feed(ends, attempts=2)
    feeding.say(begin(feeding, 0))
    five = begin(feeding, 5)
    feeding.say(five, five)  # said twice, it is begun once
    assert lines(tmp_path) == [(0, 2, 2, 1, 0)]
    feeding.end()
    ends["eval5/1"] = "unresolved"
    feeding.start()
    assert lines(tmp_path) == [(0, 2, 2, 1, 0), (5, 2, 2, 1, 0)]
    assert of(feeding) == {**{name: end for name, end in ends.items() if name != "eval5/1"},
                           "eval5/1": "cancelled", "eval5/1-2": "unresolved"}  # fmt: skip


def test_kill_between_the_line_and_the_journal_keeps_one_line(
    feed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeding = feed({"eval0/0": "resolved"})
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "finish_evaluation", lambda *_: None)
        feeding.say(begin(feeding, 0))
    feeding.end()
    feeding.start()
    assert len(feeding.evaluated) == 1
    assert feeding.journal.open_evaluations() == []
    assert lines(tmp_path) == [(0, 1, 1, 1, 0)]
    assert of(feeding) == {"eval0/0": "resolved"}


def test_lost_weights_are_evaluated_again_under_new_ids(feed: Make, tmp_path: Path) -> None:
    feeding = feed({"eval0/0": "resolved", "eval5/0": "resolved", "eval5.2/0": "agent"})
    feeding.say(begin(feeding, 0), begin(feeding, 5, 6))
    feeding.journal.rewind(3)
    feeding.end()
    feeding.start()
    assert feeding.journal.last_evaluation() == 0
    feeding.say(begin(feeding, 5, 8))
    assert lines(tmp_path) == [(0, 1, 1, 1, 0), (5, 1, 0, 0, 1)]
    assert of(feeding) == {"eval0/0": "resolved", "eval5/0": "resolved", "eval5.2/0": "error"}


def test_attempts_of_an_evaluation_that_a_dead_server_lost_run_again(feed: Make, tmp_path: Path) -> None:
    ends: dict[str, str] = {}
    feeding = feed(ends)
    feeding.say(begin(feeding, 0))
    feeding.say(Lost(url=URLS[0]))
    assert (of(feeding), feeding.evaluated) == ({"eval0/0": "engine_lost"}, [])
    ends["eval0/0"] = "resolved"
    feeding.say(Back(url=URLS[0]))
    assert of(feeding) == {"eval0/0": "engine_lost", "eval0/0-2": "resolved"}
    assert lines(tmp_path) == [(0, 1, 1, 1, 0)]


def test_end_of_the_training_cancels_groups_and_finishes_evaluations(feed: Make) -> None:
    feeding = feed({})
    feeding.say(begin(feeding, 9), Finish())
    assert feeding.outcomes() == {"0/0": "cancelled", "0/1": "cancelled"}
    (name,) = feeding.rollouts.running
    feeding.rollouts.finish(name, "resolved")
    feeding.do()
    assert len(feeding.evaluated) == 1
    assert (feeding.closed, feeding.problem, feeding.task.done()) == ([], None, False)


def test_evaluation_without_a_verdict_does_not_end_the_training(feed: Make, tmp_path: Path) -> None:
    feeding = feed({f"eval{step}/0": "agent" for step in range(3)}, held_out=2, give_up_after=1)
    feeding.say(*(begin(feeding, step, step + 1) for step in range(3)))
    assert feeding.problem is None
    assert lines(tmp_path) == [(step, 2, 0, 0, 2) for step in range(3)]
    values = [report.values for report in feeding.evaluated]  # without a rate
    assert {"eval/step": 0.0, "eval/rollouts": 2.0, "eval/errors": 2.0} in values


def test_line_that_cannot_be_written_ends_the_run_in_a_sentence(feed: Make, tmp_path: Path) -> None:
    (tmp_path / EVALUATIONS_FILE).mkdir()
    feeding = feed({"eval0/0": "resolved"})
    feeding.say(begin(feeding, 0))
    assert isinstance(feeding.problem, SweError)
    assert "Is a directory; make room, then resume with --resume" in str(feeding.problem)


def test_resume_without_held_out_tasks_leaves_an_open_evaluation(feed: Make, tmp_path: Path) -> None:
    feeding = feed({})
    feeding.say(begin(feeding, 0))
    feeding.end()
    feeding.held_out = []
    feeding.start()
    assert len(feeding.journal.open_evaluations()) == 1
    assert read_evaluations(tmp_path) == []


async def test_slot_that_a_cancelled_task_was_given_is_passed_on() -> None:
    slots, began = Slots(1), anyio.Event()

    async def hold(scope: anyio.CancelScope) -> None:
        with scope:
            async with slots.one(first=False):
                began.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            cancelled = anyio.CancelScope()
            async with slots.one(first=True):
                tasks.start_soon(hold, cancelled)
                await anyio.wait_all_tasks_blocked()
                cancelled.cancel()  # it gets the slot before it learns of this
        assert not began.is_set()
        async with slots.one(first=False):
            pass
