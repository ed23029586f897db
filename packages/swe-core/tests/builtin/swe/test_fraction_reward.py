"""`grader.swe.reward = fraction`: what a part of the FAIL_TO_PASS tests earns, and what earns nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from swe_core.api.grader import Grade
from swe_core.api.sandbox import SandboxProvider
from swe_core.api.task import Task, TestStatus
from swe_core.builtin.swe import SweGraderConfig
from swe_core.builtin.swe.report import Report
from swe_core.builtin.swe.run_tests import TestRun
from swe_core.builtin.swe.verdict import read
from swe_testing.records import make_task

from ...repositories import Repo, slow_but, swe_grader
from .helpers import calc_task

BUGGY = "def add(a, b):\n    return a - b\ndef sub(a, b):\n    return a + b\ndef same(a):\n    return a\n"
OLD_TEST = "import calc\n\ndef test_zero():\n    assert calc.add(0, 0) == 0\n"
HIDDEN = """
def test_add():
    assert calc.add(1, 2) == 3
def test_sub():
    assert calc.sub(3, 2) == 1
def test_same():
    assert calc.same(1) == 1
"""
FIX_ADD = "sed -i 's/a - b/a + b/; t' calc.py"
FIX = "sed -i 's/a - b/A/; s/a + b/a - b/; s/A/a + b/' calc.py"
IDS = [f"tests/test_calc.py::test_{name}" for name in ("add", "sub", "same")]


@pytest.fixture
def task(repo: Repo) -> Task:
    """Of three FAIL_TO_PASS tests, the last one passes at the base, whatever the row says."""
    repo.commit(calc_py=BUGGY, tests__test_calc_py=OLD_TEST, conftest_py="")
    return calc_task(repo, FIX, HIDDEN, fail_to_pass=tuple(IDS))


class Fractions:
    """Grades what scripts change, with one grader."""

    def __init__(self, repo: Repo, provider: SandboxProvider, task: Task, **settings: Any) -> None:
        self.repo, self.provider, self.task = repo, provider, task
        self.grader = swe_grader(**{"reward": "fraction", **settings})

    async def grade(self, script: str) -> Grade:
        patch = await self.repo.patch_by(script, self.provider)
        return (await self.grader.grade(self.task, patch, self.provider, self.repo.spec, 120)).grade


@pytest.fixture
def fractions(repo: Repo, provider: SandboxProvider, task: Task) -> Fractions:
    return Fractions(repo, provider, task)


REWARDS = {
    "a part": (FIX_ADD, 0.5),  # of two tests: one that passes at the base anyway is no part
    "all": (FIX, 1.0),
    "nothing": ("echo '# nothing' >>calc.py", 0.0),  # the test that passes at the base pays nothing
    "breaks FAIL_TO_PASS": (f"{FIX_ADD}; echo 'def same(a): return 2' >>calc.py", 0.0),  # costs all
}


async def test_fixed_tests_earn_their_share(fractions: Fractions) -> None:
    for how, (script, reward) in REWARDS.items():
        grade = await fractions.grade(script)
        assert (grade.resolved, grade.reward) == (reward == 1.0, reward), how
        if how == "a part":
            assert grade.fail_to_pass == dict(zip(IDS, ("PASSED", "FAILED", "PASSED"), strict=True))


@pytest.mark.parametrize("killed", slow_but([1], [1, 2]))
@pytest.mark.slow
async def test_base_that_was_killed_pays_nothing_and_runs_again_once(
    fractions: Fractions, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed run reports no test that passes anyway."""
    test, runs = fractions.grader._test, []

    async def cut_short(task: Task, patch: bytes, *others: Any, **more: Any) -> Any:
        tested = await test(task, patch, *others, **more)
        if not patch:
            runs.append(patch)
            if len(runs) <= killed and tested.done is not None:
                run, reading = tested.done
                return dataclasses.replace(tested, done=(dataclasses.replace(run, exit_code=None), reading))
        return tested

    monkeypatch.setattr(fractions.grader, "_test", cut_short)
    assert [(await fractions.grade(FIX_ADD)).reward for _ in range(3)] == (
        [0.0, 0.5, 0.5] if killed == 1 else [0.0, 0.0, 0.0]
    )
    assert len(runs) == 2


@pytest.mark.slow
async def test_neither_binary_nor_a_suspicious_patch_pays_a_part(
    repo: Repo, provider: SandboxProvider, task: Task
) -> None:
    binary = await Fractions(repo, provider, task, reward="binary").grade(FIX_ADD)
    assert (binary.resolved, binary.reward) == (False, 0.0)
    script = f"{FIX_ADD}; echo 'import sys; sys._getframe()' >>calc.py"
    strict = await Fractions(repo, provider, task, suspicious="unresolved").grade(script)
    assert strict.suspicious
    assert (strict.resolved, strict.reward) == (False, 0.0)


@pytest.mark.slow
async def test_part_of_a_run_that_the_reference_contradicts_earns_nothing(fractions: Fractions) -> None:
    """A skipped PASS_TO_PASS test is kept, unless code under test skips it: the rule of a resolved task."""
    code = 'def add(a, b): return a + b if a else __import__("pytest").skip()'
    grade = await fractions.grade(f"echo '{code}' >>calc.py")
    assert grade.fail_to_pass[IDS[0]] == "PASSED"
    assert list(grade.pass_to_pass.values()) == ["SKIPPED"]
    assert (grade.resolved, grade.reward) == (False, 0.0)
    assert "ends as SKIPPED with this patch alone" in grade.reason


def fixed(ended: dict[str, TestStatus], **fields: Any) -> set[str]:
    """The fixed tests of a run that ended in this way; of a task with two FAIL_TO_PASS tests."""
    task = make_task(**{"fail_to_pass": ("a", "b"), "pass_to_pass": ("p",), **fields})
    report = Report(sessions=1, complete=True, exit_status=1, statuses=dict(ended))
    log = "=== short test summary info ===\n" + "".join(f"{end} {test}\n" for test, end in ended.items())
    return set(read(task, TestRun(1, log.encode(), 1.0, report)).fixed)


ALL = {"a": "PASSED", "b": "PASSED", "p": "PASSED"}
PART = {**ALL, "b": "FAILED"}
FIXED: list[tuple[dict[str, Any], dict[str, Any] | None, set[str]]] = [
    (PART, None, {"a"}),
    ({**PART, "p": "SKIPPED"}, None, {"a"}),
    ({**PART, "p": "FAILED"}, None, set()),
    ({"a": "PASSED", "b": "FAILED"}, None, set()),  # p is missing
    ({**PART, "a": "SKIPPED"}, None, set()),
    (PART, ALL, {"a"}),
    (PART, {**ALL, "a": "XFAIL"}, set()),
    ({**PART, "x": "FAILED"}, ALL, set()),
    ({**PART, "x": "FAILED"}, {**ALL, "x": "PASSED"}, set()),
]


def test_tests_are_fixed_only_if_all_else_is_as_it_should_be() -> None:
    for ended, expected, found in FIXED:
        assert fixed(ended, expected=expected) == found, (ended, expected)


def test_grade_has_the_reward_of_its_verdict_unless_it_says_another() -> None:
    assert [Grade(resolved=resolved).reward for resolved in (True, False)] == [1.0, 0.0]
    assert Grade(resolved=False, reward=0.5).reward == 0.5
    with pytest.raises(ValueError, match="'binary' or 'fraction'"):
        SweGraderConfig(reward="share")  # type: ignore[arg-type]  # wrong on purpose
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="reward"):
            Grade(resolved=False, reward=wrong)
