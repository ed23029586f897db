"""Groups of attempts, with rollouts in memory: what is written of them, and when a run gives up."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.records import Rollout
from swe_core.api.rollout_request import RolloutRequest
from swe_core.errors import ConfigError, SweError
from swe_core.rollout.training_records import GROUPS_FILE, append_lines, read_groups
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts import group_scheduler
from swe_trainer_trl.rollouts.group_scheduler import tasks_from
from swe_trainer_trl.rollouts.messages import Stop, Taken, Version
from swe_trainer_trl.rollouts.metrics import RolloutMetrics
from swe_trainer_trl.rollouts.staleness import StalenessCheck

from ..scripted_rollouts import OPTIONS
from .in_memory import Feeding, place_of, turn

Make = Callable[..., Feeding]


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Make]:
    """A feeder that runs; its rollouts end as `ends` says of "GROUP/ATTEMPT", "ATTEMPT" or "*"."""
    made: list[Feeding] = []

    def make(ends: dict[str, str], *, tasks: int = 1, start: bool = True, **options: Any) -> Feeding:
        feeding = Feeding(tmp_path, OPTIONS.model_copy(update=options), tasks=tasks)
        made.append(feeding)
        feeding.rollouts.ends = lambda name: next(
            (ends[key] for key in (place_of(name), place_of(name)[-1], "*") if key in ends), None
        )
        if start:
            feeding.start()
        for _ in range(5 if start else 0):
            feeding.do()
        return feeding

    yield make
    for one in made:
        one.close()


names = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@given(names, st.integers(0, 20), st.integers(), st.booleans())
def test_epoch_has_every_task_once_and_a_resumed_run_keeps_its_order(
    tasks: list[str], begun: int, seed: int, shuffle: bool
) -> None:
    options = OPTIONS.model_copy(update={"seed": seed, "shuffle": shuffle})
    whole = list(itertools.islice(tasks_from(0, tasks, options), 40))
    for epoch in range(40 // len(tasks)):
        assert sorted(whole[epoch * len(tasks) : (epoch + 1) * len(tasks)]) == sorted(tasks)
    assert list(itertools.islice(tasks_from(begun, tasks, options), 40 - begun)) == whole[begun:]
    if not shuffle:
        assert whole[: len(tasks)] == tasks
    many, orders = [str(number) for number in range(20)], set()
    for other in range(3):
        source = tasks_from(0, many, OPTIONS.model_copy(update={"seed": seed + other, "shuffle": True}))
        orders |= {tuple(itertools.islice(source, 20)) for _ in range(3)}
    assert len(orders) == 9  # an epoch and a seed have orders of their own


def test_group_has_its_line_before_it_is_closed_and_once_more_after_a_kill(
    feed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a kill in between would leave a group without a line."""

    def killed(self: Journal, *_: object) -> None:
        raise SweError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "close_group", killed)
        feeding = feed({"0": "resolved", "1": "unresolved"}, groups_ahead=1)
    assert str(feeding.problem) == "killed"
    (before,) = read_groups(tmp_path)
    feeding.ended()
    feeding.start()
    assert feeding.closed == [0]
    assert (tmp_path / GROUPS_FILE).read_bytes().count(b"\n") == 2
    assert read_groups(tmp_path) == [before]


def test_end_that_comes_between_the_line_of_a_group_and_its_close_waits_for_both(
    feed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a group has a line that says it is closed, and is not."""
    feeding = feed({"0": "resolved"}, groups_ahead=1)

    def append(*given: Any) -> None:
        append_lines(*given)
        feeding.send.send_nowait(Stop())

    monkeypatch.setattr(group_scheduler, "append_lines", append)
    (name,) = feeding.rollouts.running
    feeding.rollouts.answer(name)
    feeding.rollouts.finish(name, "unresolved")
    feeding.do()
    assert feeding.task.done()
    assert [line.group for line in read_groups(tmp_path)] == [0]
    assert [group.id for group in feeding.journal.ready()] == [0]


def test_line_of_a_group_that_cannot_be_written_ends_nothing(
    feed: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / GROUPS_FILE).mkdir()
    feeding = feed({"0": "resolved", "1": "unresolved"}, groups_ahead=2)
    assert feeding.closed == [0, 1]
    assert feeding.problem is None
    assert [record.getMessage() for record in caplog.records if GROUPS_FILE in record.getMessage()] == [
        "groups.jsonl lacks groups: Is a directory"
    ]
    feeding.say(Taken(group=0))
    assert "group/backpressure_s_total" not in feeding.metrics  # comes with the next report
    feeding.end()
    assert feeding.metrics["group/backpressure_s_total"] > 0


@pytest.mark.parametrize(
    ("ends", "options", "closed", "said"),
    [
        # A group with a verdict begins the count anew; one whose attempts were cancelled says nothing.
        (
            {"0/0": "agent", "0/1": "agent", "1/0": "resolved", "*": "agent"},
            {"give_up_after": 2},
            [0, 1, 2, 3],
            "no attempt of the last 2 groups has a verdict.* most often it was agent: it failed .4 times.$",
        ),
        ({"1": "agent", "*": "resolved"}, {"group_size": 3}, [0, 1, 2], "same reward, so.*no_spread=keep$"),
        ({"*": "cut"}, {"overlong": "exclude"}, [0, 1, 2], "were excluded as overlong.*raise the budgets"),
        ({"*": "silent"}, {"keep_without_spread": True}, [0, 1], "no sampled token .* .nothing was sampled"),
    ],
)
def test_run_that_learns_nothing_is_given_up(
    feed: Make,
    monkeypatch: pytest.MonkeyPatch,
    ends: dict[str, str],
    options: dict[str, Any],
    closed: list[int],
    said: str,
) -> None:
    """It would be rolled out for ever, and pay for it."""
    monkeypatch.setattr(group_scheduler, "_ALIKE", 3)
    feeding = feed(ends, **{"groups_ahead": 1, **options})
    assert feeding.closed == closed
    assert re.search(said, str(feeding.problem))


@pytest.mark.parametrize("gone", [True, False])
def test_training_that_cannot_be(feed: Make, tmp_path: Path, gone: bool) -> None:
    """A task of an open group is gone, or the agent asks no host."""
    feeding = feed({}, start=False)
    if gone:
        with closing(Journal(tmp_path / "train.sqlite")) as journal:
            journal.open_group("gone__task-1", 2)
    else:
        feeding.rollouts.engine = None
    feeding.start()
    assert isinstance(feeding.problem, ConfigError)
    missing = "'gone__task-1', which is not among its tasks: give the same"
    assert (missing if gone else "leave out --mode black-box") in str(feeding.problem)


def test_tokens_of_a_lost_try_make_no_rollout_stale(feed: Make) -> None:
    """Its sandbox failed, and it is run again: those ids are not trained, so their age does not count."""
    feeding = feed({}, group_size=1, groups_ahead=1, max_staleness=0)
    (name,) = feeding.rollouts.running
    for phase in ("open", "agent"):
        feeding.rollouts.phase(name, phase)
    feeding.rollouts.answer(name)
    for phase in ("export", "open"):
        feeding.rollouts.phase(name, phase)
    feeding.say(Version(version=2, updates=2))
    assert name in feeding.rollouts.running
    feeding.rollouts.answer(name)
    feeding.say(Version(version=3, updates=3))
    assert feeding.outcomes() == {"0/0": "stale"}
    feeding.end()
    assert feeding.metrics["staleness/cancelled_total"] == 1


def test_only_ids_that_may_be_trained_and_rollouts_that_were_cancelled_count() -> None:
    """One that has its outcome already keeps it."""
    cancelled: list[str] = []

    class Runner:
        def cancel(self, rollout_id: str, why: str) -> None:
            cancelled.append(rollout_id)

    tally = RolloutMetrics()
    freshness = StalenessCheck(Runner(), 0, {}, 0, tally)  # type: ignore[arg-type]  # cancels only
    for name in "abc":
        freshness.started(RolloutRequest.model_construct(id=name))
        freshness.turn(name, turn([0], "forced" if name == "c" else None))
    freshness.advance(1, 1)
    freshness.advance(2, 2)
    assert cancelled == ["a", "b"]
    for name, outcome, why in (("a", "resolved", None), ("b", "cancelled", "stale"), ("c", "resolved", None)):
        freshness.finished(Rollout.model_construct(id=name, outcome=outcome, cancelled_as=why))
    assert len(freshness) == 0
    assert tally.take(0)["staleness/cancelled_total"] == 1
