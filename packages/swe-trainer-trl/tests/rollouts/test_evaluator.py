"""Evaluations while training: scripted rollouts on held-out tasks beside those of groups."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import anyio
import pytest

from swe_core.report.summary import summary
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import Evaluation, read_evaluations
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts.evaluator import metrics_of
from swe_trainer_trl.rollouts.messages import Back, Evaluate, Evaluated, Finish, Lost, Metrics, Version
from swe_trainer_trl.rollouts.slots import Slots

from ..journal.test_journal import fates
from .test_group_scheduler import SERVER, Feed, _light, feeding  # noqa: F401 (an automatic fixture)

pytestmark = pytest.mark.anyio
STAYS = {"0/0": ["stay"], "0/1": ["stay"]}
"""A group that is never closed."""


def begin(feed: Feed, step: int, version: int = 1) -> Evaluate:
    """What the trainer does: an entry in the journal, and the command."""
    return Evaluate(**asdict(feed.journal.begin_evaluation(step, version)))


def evaluated(feed: Feed) -> list[int]:
    return [report.id for report in feed.reports if isinstance(report, Evaluated)]


def asks(feed: Feed, end: str) -> bool:
    """Whether the rollout whose id ends so has asked the engine for something."""
    return any(name.endswith(end) for name in feed.engine.rollouts)


def lines(path: Path) -> list[tuple[int, int, int, int, int]]:
    return [
        (one.step, one.rollouts, one.verdicts, one.resolved, one.errors) for one in read_evaluations(path)
    ]


async def test_evaluation_has_its_own_attempts_records_and_metrics(tmp_path: Path) -> None:
    """One attempt is resolved, one is not, one fails; a group runs meanwhile."""
    words = {"eval0/2": ["crash"], "*": ["again", "done"]}
    run = tmp_path / "run"
    async with feeding(run, words, held_out=1, groups_ahead=1, eval_attempts=3) as feed:
        await feed.say(begin(feed, 0))
        await feed.until(lambda: len(evaluated(feed)) == 1 and feed.closed == [0])
        assert feed.journal.open_evaluations() == []
        assert feed.journal.last_evaluation() == 0
        tokens = fates(feed.journal)
    (line,) = read_evaluations(run)
    assert (line.step, line.version, line.oldest, line.newest) == (0, 1, 1, 1)
    assert (line.rollouts, line.verdicts, line.resolved, line.errors, line.reward) == (3, 2, 1, 1, 0.5)
    (report,) = (one for one in feed.reports if isinstance(one, Evaluated))
    assert report.values == metrics_of(line)
    assert report.values["eval/resolved_rate"] == (1.0, 2.0)
    assert report.values["eval/errors"] == 1.0
    trained = {name: rollout for name, rollout in feed.rollouts.items() if not name.startswith("eval")}
    held_out = {name: rollout for name, rollout in feed.rollouts.items() if name.startswith("eval")}
    assert {name: one.outcome for name, one in held_out.items()} == {
        "eval0/0": "resolved",
        "eval0/1": "unresolved",
        "eval0/2": "error",
    }
    tasks = {rollout.task_id for rollout in held_out.values()}
    assert len(tasks) == 1
    assert tasks.isdisjoint(rollout.task_id for rollout in trained.values())
    assert {one.id for one in held_out.values()} == {f"{next(iter(tasks))}-eval0-{n}" for n in range(3)}
    assert {one.evaluation for one in held_out.values()} == {0}
    assert {one.evaluation for one in trained.values()} == {None}
    # No token of it is trained or waits, and all are accounted for.
    ledger = held_out["eval0/0"].ledger
    assert ledger is not None
    assert (ledger.sampled, ledger.trainable, ledger.dropped) == (9, 0, {"evaluation": 9})
    assert tokens.get("waiting", 0) == sum(one.ledger.trainable for one in trained.values() if one.ledger)
    # Metrics and the report tell them apart.
    assert feed.measured("rollout/finished_total") == len(trained)
    assert feed.measured("rollout/errors_agent_total") == 0
    counted = [
        one.values["reward"] for one in feed.reports if isinstance(one, Metrics) and "reward" in one.values
    ]
    assert sum(number for _, number in counted) == len(trained)  # type: ignore[misc]  # rates are pairs
    said = summary(RunDirectory.open(run), list(feed.rollouts.values()), None)
    assert said["finished"] == len(trained)
    assert said["errors_by_boundary"] == {}
    # A summary is JSON, a dict of objects: hence "type: ignore".
    assert [one["resolved_rate"] for one in said["evaluations"]] == [0.5]  # type: ignore[attr-defined]


async def test_evaluation_gets_the_next_free_slot(tmp_path: Path) -> None:
    """Attempts of groups have waited longer."""
    words = {"0/0": ["now>done"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, held_out=1, concurrency=1, groups_ahead=9) as feed:
        await feed.script.held("now")
        await anyio.wait_all_tasks_blocked()
        await feed.say(begin(feed, 0))
        await anyio.wait_all_tasks_blocked()
        feed.script.let("now")
        await feed.until(lambda: len(evaluated(feed)) == 1)
        assert list(feed.rollouts)[:2] == ["0/0", "eval0/0"]


async def test_evaluation_is_never_stale_and_says_which_versions_answered(tmp_path: Path) -> None:
    words = {"eval0/0": ["again", "new>done"], "*": ["stay"]}
    async with feeding(tmp_path / "run", words, held_out=1, max_staleness=0) as feed:
        await feed.say(begin(feed, 0))
        await feed.script.held("new")
        await feed.say(Version(version=2, updates=2), Version(version=3, updates=3))
        await feed.until(lambda: feed.engine.versions[-1:] == [3])
        feed.script.let("new")
        await feed.until(lambda: len(evaluated(feed)) == 1)
        (line,) = read_evaluations(tmp_path / "run")
    assert feed.rollouts["eval0/0"].outcome == "resolved"
    assert (line.version, line.oldest) == (1, 1)
    assert line.newest in (1, 2, 3)


async def test_interrupted_evaluation_is_completed_and_a_finished_one_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "run"
    words = {**STAYS, "eval5/1": ["stay"], "*": ["done"]}
    async with feeding(path, words, held_out=1, eval_attempts=2) as feed:
        await feed.say(begin(feed, 0))
        await feed.until(lambda: len(evaluated(feed)) == 1)
        await feed.say(begin(feed, 5))
        await feed.until(lambda: "eval5/0" in feed.rollouts)
    assert lines(path) == [(0, 2, 2, 1, 0)]
    before = feed.rollouts
    async with feeding(path, {**STAYS, "*": ["done"]}, held_out=1, eval_attempts=2) as feed:
        await feed.until(lambda: len(evaluated(feed)) == 1)
    assert lines(path) == [(0, 2, 2, 1, 0), (5, 2, 2, 1, 0)]
    assert feed.outcomes["eval5/1-2"] == "unresolved"
    done = [name for name, one in before.items() if name.startswith("eval") and one.reward is not None]
    assert {name: feed.rollouts[name] for name in done} == {name: before[name] for name in done}
    assert sum(name.startswith("eval0") for name in feed.rollouts) == 2


async def test_kill_between_the_line_and_the_journal_keeps_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run"
    async with feeding(path, {**STAYS, "*": ["done"]}, held_out=1) as feed:
        # As a kill would, it leaves the journal without its entry; mypy forbids replaced methods.
        finish, Journal.finish_evaluation = Journal.finish_evaluation, lambda *_: None  # type: ignore[assignment]
        try:
            await feed.say(begin(feed, 0))
            await feed.until(lambda: len(evaluated(feed)) == 1)
        finally:
            Journal.finish_evaluation = finish  # type: ignore[method-assign]
    async with feeding(path, {**STAYS, "*": ["done"]}, held_out=1) as feed:
        await feed.until(lambda: len(evaluated(feed)) == 1)
        assert feed.journal.open_evaluations() == []
    assert lines(path) == [(0, 1, 1, 1, 0)]
    assert [name for name in feed.rollouts if name.startswith("eval")] == ["eval0/0"]


async def test_lost_weights_are_evaluated_again_under_new_ids(tmp_path: Path) -> None:
    path = tmp_path / "run"
    async with feeding(path, {**STAYS, "*": ["done"]}, held_out=1) as feed:
        for step, version in ((0, 1), (5, 6)):
            await feed.say(begin(feed, step, version))
        await feed.until(lambda: len(evaluated(feed)) == 2)

    def rewound(journal: Journal) -> None:
        journal.rewind(3)

    words = {**STAYS, "eval5.2/0": ["crash"], "*": ["done"]}
    async with feeding(path, words, held_out=1, prepare=rewound) as feed:
        assert feed.journal.last_evaluation() == 0
        await feed.say(begin(feed, 5, 8))
        await feed.until(lambda: len(evaluated(feed)) == 1)
    assert lines(path) == [(0, 1, 1, 1, 0), (5, 1, 0, 0, 1)]
    names = {name for name in feed.rollouts if name.startswith("eval")}
    assert names == {"eval0/0", "eval5/0", "eval5.2/0"}


async def test_attempts_of_an_evaluation_that_a_dead_server_lost_run_again(tmp_path: Path) -> None:
    words = {**STAYS, "eval0/0": ["stay"], "*": ["done"]}
    async with feeding(tmp_path / "run", words, held_out=1) as feed:
        await feed.say(begin(feed, 0))
        await feed.until(lambda: asks(feed, "-eval0-0"))
        await feed.say(Lost(url=SERVER))
        await feed.until(lambda: "eval0/0" in feed.rollouts)
        feed.script.words = {**STAYS, "*": ["done"]}
        assert evaluated(feed) == []
        await feed.say(Back(url=SERVER))
        await feed.until(lambda: len(evaluated(feed)) == 1)
    assert feed.rollouts["eval0/0"].cancelled_as == "engine_lost"
    assert feed.outcomes["eval0/0-2"] == "resolved"
    assert lines(tmp_path / "run") == [(0, 1, 1, 1, 0)]


async def test_end_of_the_training_cancels_groups_and_finishes_evaluations(tmp_path: Path) -> None:
    words = {"eval9/0": ["last>done"], "*": ["stay"]}
    async with feeding(tmp_path / "run", words, held_out=1, concurrency=2) as feed:
        await feed.until(lambda: len(feed.engine.rollouts) == 2)
        await feed.say(begin(feed, 9), Finish())
        await feed.script.held("last")
        assert set(feed.outcomes.values()) == {"cancelled"}
        assert not feed.ended.is_set()
        feed.script.let("last")
        await feed.until(lambda: len(evaluated(feed)) == 1)
    assert feed.closed == []
    assert feed.problem is None


async def test_evaluation_without_a_verdict_does_not_end_the_training(tmp_path: Path) -> None:
    words = {**STAYS, "*": ["crash"]}
    async with feeding(tmp_path / "run", words, held_out=2, give_up_after=1) as feed:
        for step in range(3):
            await feed.say(begin(feed, step, step + 1))
        await feed.until(lambda: len(evaluated(feed)) == 3)
    assert feed.problem is None
    assert lines(tmp_path / "run") == [(step, 2, 0, 0, 2) for step in range(3)]
    values = [report.values for report in feed.reports if isinstance(report, Evaluated)]
    assert {"eval/step": 0.0, "eval/rollouts": 2.0, "eval/errors": 2.0} in values


async def test_resume_without_held_out_tasks_leaves_an_open_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "run"
    async with feeding(path, {"*": ["stay"]}, held_out=1, groups_ahead=1) as feed:
        await feed.say(begin(feed, 0))
        await feed.until(lambda: asks(feed, "-eval0-0"))
    async with feeding(path, {"*": ["done"]}, groups_ahead=1) as feed:
        await feed.until(lambda: feed.closed == [0])
        assert len(feed.journal.open_evaluations()) == 1
    assert read_evaluations(path) == []


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


def test_metrics_have_no_rate_without_a_verdict() -> None:
    line = Evaluation.model_validate(
        {**_LINE, "verdicts": 0, "resolved": 0, "reward": None, "oldest": None, "newest": None}
    )
    assert line.resolved_rate is None
    assert sorted(metrics_of(line)) == ["eval/errors", "eval/rollouts", "eval/step"]


_LINE = {
    "step": 1,
    "version": 2,
    "oldest": 1,
    "newest": 2,
    "rollouts": 2,
    "verdicts": 2,
    "resolved": 1,
    "errors": 0,
    "reward": 0.5,
    "finished_at": "2026-01-01T00:00:00Z",
}
