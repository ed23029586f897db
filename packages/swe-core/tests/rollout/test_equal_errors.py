"""Equal errors without a verdict between them: what is equal, and when they end a run."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from swe_core.api.records import Failure, Rollout
from swe_core.api.sandbox import Sandbox
from swe_core.errors import ImageNotFound, RunStopped
from swe_core.rollout.equal_errors import EqualErrors, Reason, kind_of, reason_of
from swe_testing.records import make_rollout
from swe_testing.waiting import until

from .runner_bench import Bench, open_bench


def failed(task: str, message: str = "the key is wrong", attempt: int = 0, **fields: str) -> Rollout:
    known = {"boundary": "engine", "type": "EngineRefused", **fields}
    failure = Failure(message=message, **known)  # type: ignore[arg-type]  # pydantic checks its literals
    return make_rollout(task, attempt, "error", failure=failure)


def counts(errors: EqualErrors, *rollouts: Rollout) -> list[int]:
    return [len(errors.add(rollout)) for rollout in rollouts]


def reason(task: str, message: str) -> Reason:
    failure = failed(task, message).failure
    assert failure is not None
    return reason_of(failure, f"{task}-0", task)


def test_reasons_are_equal_whatever_ids_they_name() -> None:
    for one, other in (
        ("HTTP 401: invalid key (request req_011CXyz9)", "HTTP 401: invalid key (request req_7Qb2c8Ws)"),
        ("t-1-0 cannot be opened", "t-2-0 cannot be opened"),
        ("container 3f9a1b2c4d5e died", "container 77aa0b2c4d51 died"),
        ("cannot write /tmp/swe-k3jd8f2a/file", "cannot write /tmp/swe-9fk2m1aa/file"),
    ):
        assert reason("t-1", one) == reason("t-2", other)
    assert reason("n", "n name").text == "… name", "ids are replaced as whole words only"


def test_reasons_that_differ_may_be_one_kind() -> None:
    for one, other, are_one_kind in (
        ("the image 'a/b:1' is missing", "the image 'c/d:2' is missing", True),
        ("no answer after 1.2s", "no answer after 950ms", True),
        ("it needs 3.2GB of 4 GiB", "it needs 17MB of 512 MB", True),
        ("1 of 3 failed", "1 in 3 failed", False),
        ("cannot read /testbed/a", "cannot read /testbed/b/c", True),
        ("the image is missing", "the engine is down", False),
    ):
        first, second = reason("t-1", one), reason("t-2", other)
        assert first != second
        assert (kind_of(first) == kind_of(second)) is are_one_kind


def test_equal_errors_are_counted_from_the_last_verdict_on() -> None:
    one, two, three, four, five = (failed(f"t-{number}") for number in range(1, 6))
    fine, unresolved = make_rollout("fine"), make_rollout("fine", outcome="unresolved")
    cancelled, overloaded = make_rollout("c", outcome="cancelled"), failed("o", "it is overloaded")
    elsewhere = [failed(f"e-{number}", boundary="sandbox", type="SandboxError") for number in range(2)]
    cases: list[tuple[int, list[Rollout], list[int]]] = [
        (4, [one, two, three, four, five], [0, 0, 0, 4, 5]),
        (0, [one, two, three, four, five], [0] * 5),
        (4, [one, two, three, fine, one, two, three], [0] * 7),
        (4, [one, two, three, unresolved, one, two, three], [0] * 7),
        (3, [one, cancelled, overloaded, two, cancelled, overloaded, three], [0] * 6 + [3]),
        (3, [one, elsewhere[0], two, elsewhere[1]], [0] * 4),
    ]
    for limit, rollouts, found in cases:
        assert counts(EqualErrors(limit, 500), *rollouts) == found


def test_broken_tasks_alone_do_not_end_a_run() -> None:
    """A task's own image may be missing, and all of its attempts come one after the other."""
    errors = EqualErrors(4, 500)
    attempts = [
        failed(f"t-{task}", f"the image 't-{task}' is missing", n) for task in (1, 2, 3) for n in range(8)
    ]
    assert counts(errors, *attempts) == [0] * 24
    tasks = errors.add(failed("t-4", "the image 't-4' is missing"))
    assert (len(tasks), len(set(tasks))) == (25, 4)


def test_run_with_fewer_tasks_than_the_limit_ends_when_all_of_them_failed() -> None:
    errors = EqualErrors(4, 2)
    assert counts(errors, *(failed("t-1", attempt=attempt) for attempt in range(8))) == [0] * 8
    assert counts(errors, failed("t-2")) == [9]
    attempts = [failed("t-1", attempt=attempt) for attempt in range(4)]
    assert counts(EqualErrors(4, 1), *attempts) == [0, 0, 0, 4]


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
    for part in (
        "the run was stopped, because 10 rollouts of 10 tasks ended in the same error and ",
        "--max-errors 0",
        "(sandbox: the image 't-",
        f"`swe-core run --resume '{tmp_path}/the run' --retry-errors`",
    ):
        assert part in says


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


async def test_run_without_a_limit_and_a_worker_that_runs_rollouts_itself_are_not_stopped(
    tmp_path: Path,
) -> None:
    """Such a worker, a trainer for example, judges its rollouts itself."""
    async with open_bench(tmp_path / "run", names(10)) as bench:
        failing(bench)
        await bench.runner.run_all()
    assert [rollout.outcome for rollout in bench.run.rollouts()] == ["error"] * 10
    async with open_bench(tmp_path / "worker", names(5), max_errors=1) as bench:
        failing(bench)
        for request in bench.runner.requests:
            assert (await bench.runner.run(request)).rollout.outcome == "error"
