"""Grading of real rows: what the program adds to their test runs in Docker.

    python benchmarks/grade_rows.py [ROWS] [--limit N] [--runs N]

The gold patch of each row of the file ROWS, or of each demo task, is graded in containers of the row's image,
in pairs with its test command on the same files in a container without the reporter. Each time has a grader
of its own, so that nothing is known from the time before; the first pair of a row is not counted.

    graded   grading, from the call to the grade
    bare     the test command alone
    added    the former less the latter: containers, repository, reporter, looking after it
    sandbox  of that: opening and closing a container, which is the engine's
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import anyio
from _common import Report, Target, give_up, median, shown, usable
from grade import bare, grade
from rich.table import Table

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin import demo, rows
from swe_core.errors import SweError, sentence

ADDED_LIMIT = 3.0
_SIDES = ("graded", "bare", "added", "sandbox")


async def pair(task: Task, provider: SandboxProvider, *, bare_first: bool) -> dict[str, float]:
    """Seconds of each side, one after the other."""
    spec = SandboxSpec(image=task.image, repository=task.repository, workdir=task.workdir, network="none")
    if bare_first:
        test_run, sandbox = await bare(task, provider, spec)
        graded = await grade(task, provider, spec)
    else:
        graded = await grade(task, provider, spec)
        test_run, sandbox = await bare(task, provider, spec)
    return {"graded": graded, "bare": test_run, "added": graded - test_run, "sandbox": sandbox}


async def measure(
    tasks: list[Task], provider: SandboxProvider, runs: int
) -> dict[str, dict[str, float | None]]:
    """The medians of each task."""
    found = {}
    for task in tasks:
        pairs = [await pair(task, provider, bare_first=number % 2 == 0) for number in range(runs + 1)][1:]
        found[task.instance_id] = {side: median(one[side] for one in pairs) for side in _SIDES}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, nargs="?", help="a file of rows whose images the engine has")
    parser.add_argument("--limit", type=int, help="measure the first N rows")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    try:
        from swe_sandbox_docker import plugin
    except ImportError:
        give_up("the package swe-sandbox-docker is not installed")
    started = time.perf_counter()
    try:
        component = next(iter(plugin.swe_sandboxes()))
        provider = component.create(component.config())
        if options.rows is None:
            if (obstacle := usable(["docker"])["docker"]) is not None:
                give_up(obstacle)
            source = next(iter(demo.swe_tasks()))
            tasks = list(source.create(source.config()).tasks())
        else:
            tasks = list(next(iter(rows.swe_tasks())).create(rows.RowsConfig(file=options.rows)).tasks())
        tasks = tasks[: options.limit]
        medians = anyio.run(measure, tasks, provider, options.runs)
    except SweError as error:
        give_up(sentence(error))
    table = Table(title=f"{len(tasks)} rows, {options.runs} runs, {time.perf_counter() - started:.0f} s")
    for column in ("row", *_SIDES):
        table.add_column(column)
    for name, sides in medians.items():
        table.add_row(name, *(shown(sides[side]) for side in _SIDES))
    targets = [Target(f"added to {name}", sides["added"], ADDED_LIMIT) for name, sides in medians.items()]
    Report(
        benchmark="grade_rows", runs=options.runs, medians=medians, ratios={}, targets=targets, notes=[]
    ).show(table)


if __name__ == "__main__":
    main()
