"""The driver: verdicts, the cache, and failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import anyio
import pytest

from swe_core.api.grader import Grade, Graded
from swe_core.api.limits import Limits
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.errors import GraderError, ImageNotFound, SweError
from swe_core.run.verify.cache import VerifyCache
from swe_core.run.verify.cheats import chosen
from swe_core.run.verify.report import TaskVerdict
from swe_core.run.verify.verify import UNRELATED, Methods, verify_tasks

from .conftest import ScriptedGrader

RESOLVED = Grade(resolved=True, fail_to_pass={"t": "PASSED"})
NOT = Grade(resolved=False, reason="1 of 1 tests fail", fail_to_pass={"t": "FAILED"})
UNBROKEN = "it is resolved without a fix: its tests pass at the base"
TWO = chosen("conftest-root,tests-deleted")


def is_gold(patch: bytes) -> bool:
    return b"a + b" in patch


def honest(patch: bytes, number: int) -> Grade:
    return RESOLVED if is_gold(patch) else NOT


def entries(directory: Path) -> list[Path]:
    return list(directory.rglob("*.json"))


async def verified(
    methods: Methods, *tasks: Task, cache: VerifyCache | None = None, concurrency: int = 2
) -> list[tuple[TaskVerdict, bool]]:
    found: list[tuple[TaskVerdict, bool]] = []
    await verify_tasks(
        tasks, methods, concurrency=concurrency, cache=cache, done=lambda *one: found.append(one)
    )
    return found


async def one(methods: Methods, task: Task) -> TaskVerdict:
    ((verdict, known),) = await verified(methods, task)
    assert not known
    return verdict


async def test_verify_accepts_usable_task(make_task: Any, methods: Any) -> None:
    grader = ScriptedGrader(honest)
    task = make_task()
    verdict = await one(methods(grader, TWO, repeat=3), task)
    assert (verdict.verdict, verdict.reason) == ("usable", "")
    assert [check.name for check in verdict.checks] == [
        *["gold"] * 3, "empty", *["unrelated"] * 3, "conftest-root", "tests-deleted",
    ]  # fmt: skip
    assert verdict.tally() == ((3, 3), (0, 4), (0, 2))
    assert verdict.digest == task.digest
    assert verdict.base_tree
    assert verdict.versions["swe-core"]
    root = next(patch for patch in grader.graded if b"pytest_runtest_makereport" in patch)
    assert root.startswith(b"diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n")


def third(other: Grade, applies: Callable[[bytes], bool]) -> Callable[[bytes, int], Grade]:
    """Honest, but for the third grading of such a patch."""
    return lambda patch, number: other if number == 2 and applies(patch) else honest(patch, number)


XFAIL = Grade(resolved=True, fail_to_pass={"t": "XFAIL"})


@pytest.mark.parametrize(
    ("answer", "repeat", "expected", "reason"),
    [
        (lambda *_: NOT, 1, "broken_gold", "the gold patch does not resolve it: 1 of 1 tests fail"),
        (lambda *_: RESOLVED, 1, "unbroken", UNBROKEN),
        (lambda patch, n: honest(patch, n) if patch else RESOLVED, 1, "unbroken", UNBROKEN),
        (lambda patch, n: RESOLVED if b"makereport" in patch else honest(patch, n), 1, "cheatable",
         "patches that fix nothing resolve it: conftest-root"),
        (third(NOT, is_gold), 2, "usable", ""),
        (third(NOT, is_gold), 5, "flaky",
         "the gold patch resolved it in try 1 and not in try 3: 1 of 1 tests fail"),
        (third(XFAIL, is_gold), 5, "flaky", "with the gold patch these tests end in different ways: 't'"),
        (third(RESOLVED, lambda patch: patch == UNRELATED), 5, "flaky",
         "a change that has nothing to do with it resolved it in try 3 and not in try 1: 1 of 1 tests fail"),
    ],
    ids=["gold fails", "all resolves", "the empty patch resolves", "a conftest resolves", "two tries",
         "gold is flaky", "a test of gold is flaky", "no fix is flaky"],
)  # fmt: skip
async def test_verdict_follows_from_the_grades(
    make_task: Any, methods: Any, answer: Any, repeat: int, expected: str, reason: str
) -> None:
    verdict = await one(methods(ScriptedGrader(answer), TWO[:1], repeat), make_task())
    assert (verdict.verdict, verdict.reason) == (expected, reason)
    stolen = {check.name: check.patch for check in verdict.checks if check.patch is not None}
    assert stolen.keys() == ({"conftest-root"} if expected == "cheatable" else set())
    assert all("makereport" in patch for patch in stolen.values())


async def test_task_without_gold_patch_is_broken(make_task: Any, methods: Any) -> None:
    verdict = await one(methods(ScriptedGrader(honest), TWO), make_task(patch=" \n"))
    assert (verdict.verdict, verdict.checks) == ("broken_gold", ())
    assert verdict.reason == "the row has no gold patch: nothing shows that it can be resolved"


async def test_report_says_why_a_gold_patch_is_broken(make_task: Any, methods: Any) -> None:
    grade = Grade(resolved=False, reason="1 of 1 tests fail", fail_to_pass={"t": "MISSING"})
    graded = Graded(grade=grade, log=b"E   ModuleNotFoundError: No module named 'sure'\nE   second\n")
    failing = SimpleNamespace(grade=AsyncMock(return_value=graded))
    verdict = await one(methods(failing), make_task())
    assert (verdict.verdict, verdict.reason) == (
        "broken_gold",
        "the gold patch does not resolve it: 1 of 1 tests fail; the first error is "
        "\"ModuleNotFoundError: No module named 'sure'\"; 1 of 1 test was not collected",
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ImageNotFound("the image 'x' is absent"), "missing_image"),
        (RuntimeError("a bug of a plugin"), "error"),
    ],
)
async def test_sandbox_failure_is_an_error_of_its_task(
    make_task: Any, methods: Any, tmp_path: Path, error: Exception, expected: str
) -> None:
    refusing = SimpleNamespace(open=Mock(side_effect=error))
    cache = VerifyCache(tmp_path)
    given = methods(ScriptedGrader(honest), provider=refusing)
    ((verdict, _),) = await verified(given, make_task(), cache=cache)
    assert verdict.verdict == expected
    assert str(error) in verdict.reason
    assert entries(tmp_path) == []


@pytest.mark.slow
async def test_failing_grader_ends_its_task_alone_and_a_failing_cheat_proves_nothing(
    make_task: Any, methods: Any
) -> None:
    def answer(patch: bytes, number: int) -> Grade | Exception:
        if b"makereport" in patch and number == 0:
            return GraderError("no")
        return KeyError("a bug") if number == 0 and is_gold(patch) else honest(patch, 0)

    tasks = [make_task(instance_id=f"t__adder-{number}") for number in range(3)]
    found = await verified(methods(ScriptedGrader(answer), TWO[:1]), *tasks, concurrency=1)
    assert [verdict.verdict for verdict, _ in found] == ["error", "error", "usable"]


@pytest.mark.slow
async def test_cached_result_is_not_graded_again(
    make_task: Any, methods: Any, tmp_path: Path, repository: Path
) -> None:
    cache, task, grader = VerifyCache(tmp_path), make_task(), ScriptedGrader(honest)
    ((first, known),) = await verified(methods(grader), task, cache=cache)
    assert not known
    before = len(grader.graded)
    for same in (task, make_task(problem_statement="other words")):
        assert await verified(methods(grader), same, cache=cache) == [(first, True)]
    assert len(grader.graded) == before
    others: list[tuple[Methods, Task]] = [
        (methods(grader), make_task(pass_to_pass=())),
        (methods(grader, TWO[:1]), task),
        (methods(grader, repeat=2), task),
        (methods(grader, grader_name="other"), task),
        (methods(grader, facts={"grader_settings": {"log_mb": 1}}), task),
    ]
    for other, row in others:
        assert [known for _, known in await verified(other, row, cache=cache)] == [False]
    extra = repository / "extra.txt"
    extra.write_text("new")
    try:
        assert [known for _, known in await verified(methods(grader), task, cache=cache)] == [False]
    finally:
        extra.unlink()
    for entry in entries(tmp_path):
        entry.write_bytes(entry.read_bytes()[:-1])
    assert [known for _, known in await verified(methods(grader), task, cache=cache)] == [False]


class Counting:
    """A provider that counts how many of its sandboxes are open at once."""

    def __init__(self, provider: SandboxProvider, awaited: int = 1) -> None:
        self.provider, self.awaited = provider, awaited
        self.open_now = self.most = 0
        self.full = anyio.Event()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.open_now += 1
        self.most = max(self.most, self.open_now)
        if self.open_now >= self.awaited:
            self.full.set()
        try:
            async with self.provider.open(spec) as sandbox:
                yield sandbox
        finally:
            self.open_now -= 1


@pytest.mark.slow
async def test_concurrency_bounds_open_sandboxes(
    make_task: Any, methods: Any, provider: SandboxProvider
) -> None:
    """The limit applies to all tasks together."""
    concurrency = 2
    counting = Counting(provider, concurrency)

    async def grade(task: Task, patch: bytes, provider: Any, spec: SandboxSpec, timeout: float) -> Graded:
        async with provider.open(spec):
            if not is_gold(patch) and patch not in (b"", UNRELATED):
                with anyio.fail_after(60):
                    await counting.full.wait()
        return Graded(grade=honest(patch, 0))

    tasks = [make_task(instance_id=f"t__adder-{number}") for number in range(2)]
    given = methods(SimpleNamespace(grade=grade), TWO, provider=counting)
    found = await verified(given, *tasks, concurrency=concurrency)
    assert [verdict.verdict for verdict, _ in found] == ["usable"] * 2
    assert (counting.most, counting.open_now) == (concurrency, 0)


async def test_cancelled_verify_keeps_results_and_closes_sandboxes(
    make_task: Any, methods: Any, provider: SandboxProvider
) -> None:
    counting, found = Counting(provider), []
    tasks = [make_task(instance_id=f"t__adder-{number}") for number in range(2)]
    with anyio.CancelScope() as scope:

        def done(verdict: TaskVerdict, known: bool) -> None:
            found.append(verdict.task_id)
            scope.cancel()

        given = methods(ScriptedGrader(honest), TWO, provider=counting)
        await verify_tasks(tasks, given, concurrency=1, cache=None, done=done)
    assert scope.cancelled_caught
    assert found == ["t__adder-0"]
    assert counting.open_now == 0
    full = Mock(side_effect=SweError("the disk is full"))  # ends it, too
    with pytest.raises(SweError, match="the disk is full"):
        await verify_tasks(tasks, methods(ScriptedGrader(honest)), concurrency=1, cache=None, done=full)


async def test_timeout_names_what_did_not_end(
    make_task: Any, methods: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = SimpleNamespace(grade=lambda *_: anyio.sleep_forever())
    limits = Limits(open=5.0, prepare=5.0, grade=0.1)
    clock = anyio.move_on_after
    monkeypatch.setattr(
        anyio, "move_on_after", lambda seconds: clock(0.2 if seconds == limits.verdict else seconds)
    )
    verdict = await one(methods(hanging, limits=limits), make_task())
    says = "grading the patch 'gold' did not end within the 30.3 s that [limits] allows"
    assert (verdict.verdict, verdict.reason) == ("error", says)
