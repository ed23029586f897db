"""Equal errors without a verdict between them: what is equal, and when they end a run."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from swe_core.api.records import Failure, Rollout
from swe_core.api.sandbox import Sandbox
from swe_core.errors import ImageNotFound, RunStopped
from swe_core.rollout.equal_errors import EqualErrors, kind_of, reason_of
from swe_testing.records import make_rollout
from swe_testing.waiting import until

from .runner_bench import Bench, open_bench


def failed(task: str, message: str = "the key is wrong", attempt: int = 0, **fields: str) -> Rollout:
    known = {"boundary": "engine", "type": "EngineRefused", **fields}
    failure = Failure(message=message, **known)  # type: ignore[arg-type]  # pydantic checks its literals
    return make_rollout(task, attempt, "error", failure=failure)


def counts(errors: EqualErrors, *rollouts: Rollout) -> list[int]:
    return [len(errors.add(rollout)) for rollout in rollouts]


def test_reasons_are_equal_whatever_ids_they_name() -> None:
    for one, other in (
        ("HTTP 401: invalid key (request req_011CXyz9)", "HTTP 401: invalid key (request req_7Qb2c8Ws)"),
        ("t-1-0 cannot be opened", "t-2-0 cannot be opened"),
        ("container 3f9a1b2c4d5e died", "container 77aa0b2c4d51 died"),
        ("cannot write /tmp/swe-k3jd8f2a/file", "cannot write /tmp/swe-9fk2m1aa/file"),
    ):
        first, second = failed("t-1", one), failed("t-2", other)
        reasons = [reason_of(each.failure, each.id, each.task_id) for each in (first, second) if each.failure]
        assert reasons[0] == reasons[1]


def test_reasons_that_differ_may_be_one_kind() -> None:
    for one, other, are_one_kind in (
        ("the image 'a/b:1' is missing", "the image 'c/d:2' is missing", True),
        ("no answer after 1.2s", "no answer after 950ms", True),
        ("it needs 3.2GB of 4 GiB", "it needs 17MB of 512 MB", True),
        ("1 of 3 failed", "1 in 3 failed", False),
        ("cannot read /testbed/a", "cannot read /testbed/b/c", True),
        ("the image is missing", "the engine is down", False),
    ):
        first, second = failed("t-1", one), failed("t-2", other)
        reasons = [reason_of(each.failure, each.id, each.task_id) for each in (first, second) if each.failure]
        assert reasons[0] != reasons[1]
        assert (kind_of(reasons[0]) == kind_of(reasons[1])) is are_one_kind


def test_equal_errors_end_a_run_at_their_limit() -> None:
    tasks = [failed(f"t-{number}") for number in range(5)]
    assert counts(EqualErrors(4, 500), *tasks) == [0, 0, 0, 4, 5]
    assert counts(EqualErrors(0, 500), *tasks) == [0] * 5


def test_verdict_starts_the_count_anew() -> None:
    tasks = [failed(f"t-{number}") for number in range(3)]
    for outcome in ("resolved", "unresolved"):
        found = counts(EqualErrors(4, 500), *tasks, make_rollout("fine", outcome=outcome), *tasks)
        assert found == [0] * 7


def test_cancelled_rollout_and_other_errors_do_not_start_the_count_anew() -> None:
    errors = EqualErrors(3, 500)
    between = [make_rollout("c", outcome="cancelled"), failed("o", "it is overloaded")]
    assert counts(errors, failed("t-1"), *between, failed("t-2"), *between, failed("t-3")) == [0] * 6 + [3]


def test_same_message_at_another_boundary_is_another_error() -> None:
    other = {"boundary": "sandbox", "type": "SandboxError"}
    rollouts = [failed("t-1"), failed("t-2", **other), failed("t-3"), failed("t-4", **other)]
    assert counts(EqualErrors(3, 500), *rollouts) == [0] * 4


def test_broken_tasks_alone_do_not_end_a_run() -> None:
    """A task's own image may be missing, and all of its attempts come one after the other."""
    errors = EqualErrors(4, 500)
    attempts = [
        failed(f"t-{task}", f"the image 't-{task}' is missing", n) for task in (1, 2, 3) for n in range(8)
    ]
    assert counts(errors, *attempts) == [0] * 24
    tasks = errors.add(failed("t-4", "the image 't-4' is missing"))
    assert (len(tasks), len(set(tasks))) == (25, 4)


def test_ids_are_replaced_as_whole_words_only() -> None:
    failure = failed("n", "n name").failure
    assert failure is not None
    assert reason_of(failure, "n-0", "n").text == "… name"


def test_run_with_fewer_tasks_than_the_limit_ends_when_all_of_them_failed() -> None:
    errors = EqualErrors(4, 2)
    assert counts(errors, *(failed("t-1", attempt=attempt) for attempt in range(8))) == [0] * 8
    assert counts(errors, failed("t-2")) == [9]
    attempts = [failed("t-1", attempt=attempt) for attempt in range(4)]
    assert counts(EqualErrors(4, 1), *attempts) == [0, 0, 0, 4]


# a run


def failing(bench: Bench, hanging: str = "") -> list[str]:
    """No sandbox opens, and one hangs for ever while it does; those that were asked for."""
    asked: list[str] = []

    def opened(sandbox: Sandbox) -> None:
        asked.append(sandbox.id)
        if sandbox.id != hanging:
            raise ImageNotFound(f"the image {sandbox.id!r} is missing")

    bench.provider.on_open, bench.provider.opening = opened, anyio.sleep_forever
    return asked


def names(tasks: int) -> list[str]:
    return [f"t-{number}" for number in range(tasks)]


@pytest.mark.anyio
async def test_run_that_cannot_succeed_is_stopped_and_keeps_its_records(tmp_path: Path) -> None:
    async with open_bench(tmp_path / "the run", names(100), max_errors=10) as bench:
        asked = failing(bench, "t-2")
        with pytest.raises(RunStopped) as raised:
            await bench.runner.run_all()
    ended = bench.run.rollouts()
    outcomes = [rollout.outcome for rollout in ended]
    assert len(asked) < 20
    assert 10 <= outcomes.count("error") < 14, "those that ran meanwhile may end first"
    assert "t-2-0" in [rollout.id for rollout in ended if rollout.outcome == "cancelled"]
    assert set(outcomes) == {"error", "cancelled"}
    assert all(rollout.cancelled_as is None for rollout in ended), "a resumed run runs them"
    says = str(raised.value)
    assert says.startswith(
        "the run was stopped, because 10 rollouts of 10 tasks ended in the same error and "
    )
    assert "(sandbox: the image 't-" in says
    assert f"`swe-core run --resume '{tmp_path}/the run' --retry-errors`" in says
    assert "--max-errors 0" in says


@pytest.mark.anyio
async def test_run_without_a_limit_runs_to_its_end(tmp_path: Path) -> None:
    async with open_bench(tmp_path / "run", names(10)) as bench:
        failing(bench)
        await bench.runner.run_all()
    assert [rollout.outcome for rollout in bench.run.rollouts()] == ["error"] * 10


@pytest.mark.anyio
async def test_rollouts_that_run_go_on_when_none_is_left_to_start(tmp_path: Path) -> None:
    async with (
        open_bench(tmp_path / "run", names(11), max_errors=10) as bench,
        anyio.create_task_group() as group,
    ):
        failing(bench, "t-2")
        group.start_soon(bench.runner.run_all)
        await until(lambda: len(bench.run.rollouts()) == 10)
        bench.runner.cancel("t-2-0", "it was waited for")
    ended = {one.id: one.cancelled_as for one in bench.run.rollouts() if one.outcome != "error"}
    assert ended == {"t-2-0": "it was waited for"}


@pytest.mark.anyio
async def test_rollout_that_a_worker_runs_itself_stops_nothing(tmp_path: Path) -> None:
    """Such a worker, a trainer for example, judges its rollouts itself."""
    async with open_bench(tmp_path / "run", names(5), max_errors=1) as bench:
        failing(bench)
        for request in bench.runner.requests:
            assert (await bench.runner.run(request)).rollout.outcome == "error"
