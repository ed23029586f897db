"""The page that compares two runs, paired by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from swe_core.report.facts import without_evaluations
from swe_core.report.finished import RolloutHead
from swe_core.report.statistics import (
    PairedDifference,
    TaskResult,
    estimates,
    paired_difference,
    task_results,
)
from swe_core.system.natural_order import natural_key
from swe_core.view.graded import PASSED
from swe_core.view.render import Page
from swe_core.view.site import ShownRun, Site

MAX_COPIED = 8
"""Runs of a static copy that it compares, each with each."""
MAX_TASKS = 500
"""Tasks that one table lists."""
MAX_WITH_TESTS = 20
"""Tasks whose tests are compared: those with the largest differences."""
MAX_TESTS = 100
MAX_CELLS = 24


@dataclass(frozen=True, slots=True)
class TestFlip:
    """A test that passes more often in one of two runs: passed attempts and graded attempts of each."""

    __test__ = False  # not a test class, in spite of its name

    name: str
    first: tuple[int, int]
    second: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task that both runs have.

    Args:
        task_id: The task.
        sides: Its attempts in each run.
        results: The same in numbers.
        change: Share of resolved attempts in the second run minus that in the first; None without a verdict.
        tests: The tests that flipped; None where they were not compared.
    """

    task_id: str
    sides: tuple[Sequence[RolloutHead], Sequence[RolloutHead]]
    results: tuple[TaskResult, TaskResult]
    change: float | None
    tests: Sequence[TestFlip] | None


def page(site: Site, query: Mapping[str, str], first: str, second: str) -> Page:
    """Return the comparison of the run `second` with the run `first`."""
    runs = site.run(first), site.run(second)
    return Page("compare.html", partial(_values, runs), f"{runs[0].heads.version}:{runs[1].heads.version}")


def _values(runs: tuple[ShownRun, ShownRun]) -> dict[str, Any]:
    heads = [list(run.heads.all()) for run in runs]
    results = [{one.task_id: one for one in task_results(of_run)} for of_run in heads]
    attempts = [_by_task(of_run) for of_run in heads]
    common = [name for name in results[0] if name in results[1]]
    pairs = [(results[0][name], results[1][name]) for name in common]
    difference = paired_difference([pair for pair in pairs if pair[0].verdicts and pair[1].verdicts])
    changes = {one.task_id: _change(one, two) for one, two in pairs}
    flipped = sorted((name for name in common if changes[name]), key=lambda name: -abs(changes[name] or 0.0))
    rows = []
    for number, name in enumerate([*flipped, *(name for name in common if not changes[name])]):
        sides = attempts[0][name], attempts[1][name]
        tests = None
        if changes[name] and number < MAX_WITH_TESTS:
            tests = flipped_tests((runs[0], sides[0]), (runs[1], sides[1]))
        rows.append(TaskRow(name, sides, (results[0][name], results[1][name]), changes[name], tests))
    return {
        "title": f"{runs[0].name} and {runs[1].name}",
        "runs": runs,
        "difference": difference,
        "said": _said(difference),
        "sides": [_side(of_run) for of_run in heads],
        "flipped": [row for row in rows if row.change],
        "same": [row for row in rows if not row.change],
        "only": [
            sorted((name for name in results[side] if name not in results[1 - side]), key=natural_key)
            for side in (0, 1)
        ],
        "changed": _changed_tasks(runs, common),
        "max_tasks": MAX_TASKS,
        "max_tests": MAX_TESTS,
        "max_cells": MAX_CELLS,
    }


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the pairs of runs that a static copy compares."""
    if len(site.runs) <= MAX_COPIED:
        for first in site.runs:
            for second in site.runs:
                if first != second:
                    yield first, second


def comparable(site: Site, name: str) -> list[str]:
    """Return the runs that the site compares with the run `name`."""
    if not site.live and len(site.runs) > MAX_COPIED:
        return []
    return [other for other in site.runs if other != name]


def flipped_tests(
    first: tuple[ShownRun, Sequence[RolloutHead]], second: tuple[ShownRun, Sequence[RolloutHead]]
) -> list[TestFlip]:
    """Return the tests that pass in another share of the graded attempts, the largest change first.

    Args:
        first, second: A run with its attempts at one task.
    """
    counted = [_passes(run, heads) for run, heads in (first, second)]
    found = []
    for test in counted[0]:
        if test in counted[1]:
            (passed, graded), (then_passed, then_graded) = counted[0][test], counted[1][test]
            if passed * then_graded != then_passed * graded:
                found.append(TestFlip(test, (passed, graded), (then_passed, then_graded)))
    return sorted(found, key=lambda one: -abs(one.first[0] / one.first[1] - one.second[0] / one.second[1]))


def _passes(run: ShownRun, heads: Sequence[RolloutHead]) -> dict[str, tuple[int, int]]:
    """Return test → attempts that pass it, and attempts that have a status of it."""
    found: dict[str, tuple[int, int]] = {}
    for head in heads:
        grade = run.heads.record(head).grade if head.grade is not None else None
        if grade is not None:
            for test, status in (*grade.fail_to_pass.items(), *grade.pass_to_pass.items()):
                passed, graded = found.get(test, (0, 0))
                found[test] = passed + (status in PASSED), graded + 1
    return found


def _by_task(heads: Sequence[RolloutHead]) -> dict[str, list[RolloutHead]]:
    found: dict[str, list[RolloutHead]] = {}
    for head in heads:
        found.setdefault(head.task_id, []).append(head)
    for attempts in found.values():
        attempts.sort(key=lambda head: natural_key(head.id))
    return found


def _change(one: TaskResult, two: TaskResult) -> float | None:
    if not one.verdicts or not two.verdicts:
        return None
    return two.resolved / two.verdicts - one.resolved / one.verdicts


def _said(difference: PairedDifference | None) -> str:
    """Return what the difference means, in one sentence."""
    if difference is None:
        return "The runs share no task with a verdict in both, so the totals below do not compare."
    if difference.low > 0:
        return "The second run is better: its interval is above 0."
    if difference.high < 0:
        return "The second run is worse: its interval is below 0."
    return "The interval contains 0: these tasks and attempts do not tell the runs apart."


def _side(heads: Sequence[RolloutHead]) -> dict[str, object]:
    """Return a run in numbers. Means are over its rollouts."""
    heads = without_evaluations(heads)
    number = len(heads) or 1
    passes = estimates(task_results(heads))
    return {
        "rollouts": len(heads),
        "verdicts": sum(head.reward is not None for head in heads),
        "resolved": sum(head.outcome == "resolved" for head in heads),
        "errors": sum(head.outcome == "error" for head in heads),
        "first": passes[0] if passes else None,
        "seconds": fmean([head.seconds for head in heads]) if heads else None,
        "turns": sum(head.turns for head in heads) / number,
        "tokens_in": sum(head.usage.prompt_tokens for head in heads) / number,
        "tokens_out": sum(head.usage.completion_tokens for head in heads) / number,
    }


def _changed_tasks(runs: tuple[ShownRun, ShownRun], common: Sequence[str]) -> list[str]:
    """Return the tasks whose content differs between the runs, although their ids are equal."""
    first, second = (run.directory.info.tasks for run in runs)
    return [name for name in common if name in first and name in second and first[name] != second[name]]
