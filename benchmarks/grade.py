"""Grading: what the program adds to a test run, and how long a log takes to read.

    python benchmarks/grade.py [--runs N] [--tests N] [--log-mb N]

A row with 1,000 tests that print 10 MB is graded in local sandboxes, in pairs with the same test command on
the same files in a sandbox without the reporter; each goes first in every other pair. Reading is measured on
a pytest log of 357 KB and 759 tests, beside the parser of the package swebench where that is installed.

    share       grading, from the call to the grade, less the bare test run of the same pair
    sandbox     of that: opening and closing an empty sandbox, which is the provider's
    processor   of the share without the sandbox: processor time of this process and of all in the sandboxes,
                which says more than wall time where the machine has other work
    parse       `parse_pytest` on the log
    swebench    `parse_log_pytest` on the same
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import anyio
from _common import Report, Target, give_up, median, ratio, shown
from rich.table import Table

from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.builtin import local
from swe_core.builtin.local import bwrap
from swe_core.builtin.swe import SweGraderConfig, swe_graders
from swe_core.builtin.swe.parsers import parse_pytest
from swe_core.builtin.swe.run_tests import test_script
from swe_core.sandboxing.repository.patch import as_patch

SHARE_LIMIT, PARSE_LIMIT = 0.45, 5.0
LOG_BYTES, LOG_TESTS = 357 * 1024, 759
COMMAND = "python -m pytest -rA -p no:cacheprovider"
SETUP = "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1"
_FILE = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)
_SIDES = {
    "graded": "grading",
    "bare": "bare test run",
    "share": "share of swe-core",
    "sandbox": "of that, a sandbox",
    "processor": "without it, processor time",
}


def sh(where: Path, script: str) -> str:
    """Run a shell script in `where`, and return what it printed."""
    done = subprocess.run(["sh", "-euc", script], cwd=where, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def a_task(where: Path, tests: int, log_mb: float) -> Task:
    """A repository with a bug, and a row of `tests` tests of it that print `log_mb` in all."""
    (where / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    body = f"    print(('x' * 99 + '\\n') * {int(log_mb * 10_000 / tests)})\n    assert add(n, 0) == n\n"
    test = "import pytest\nfrom calc import add\n\n"
    test += f"@pytest.mark.parametrize('n', range({tests - 1}))\ndef test_zero(n):\n{body}\n"
    (where / "test_calc.py").write_text("")
    git = "git -c user.name=b -c user.email=b@example.invalid"
    sh(where, f"git init -q && git add -A && {git} commit -qm base")
    (where / "test_calc.py").write_text(test + "def test_add():\n    assert add(1, 2) == 3\n")
    test_patch = sh(where, "git diff && git checkout -q .")
    (where / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    gold = sh(where, "git diff && git checkout -q .")
    return Task(
        instance_id="bench-1",
        repo="bench",
        base_commit=sh(where, "git rev-parse HEAD").strip(),
        problem_statement="add() subtracts",
        patch=gold,
        test_patch=test_patch,
        fail_to_pass=("test_calc.py::test_add",),
        pass_to_pass=tuple(f"test_calc.py::test_zero[{n}]" for n in range(tests - 1)),
        setup=SETUP,
        test_command=COMMAND,
    )


def processor() -> float:
    """Seconds of processor time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


async def grade(task: Task, provider: SandboxProvider, spec: SandboxSpec) -> float:
    """Seconds of grading the gold patch."""
    grader = next(iter(swe_graders())).create(SweGraderConfig())
    started = time.perf_counter()
    graded = await grader.grade(task, task.patch.encode(), provider, spec, 600)
    seconds = time.perf_counter() - started
    if not graded.grade.resolved:
        give_up(f"the gold patch does not resolve: {graded.grade.reason}")
    return seconds


async def bare(task: Task, provider: SandboxProvider, spec: SandboxSpec) -> tuple[float, float]:
    """Seconds of the test command alone, and of opening and closing the sandbox that it ran in."""
    started = time.perf_counter()
    async with provider.open(spec) as sandbox:
        await sandbox.exec(["true"])
        opened = time.perf_counter() - started
        for patch in (task.patch, task.test_patch):
            await sandbox.exec(["git", "apply", "-"], stdin=as_patch(patch))
        script = test_script(task, sandbox.spec.workdir, _FILE.findall(task.test_patch), "")
        begun = time.perf_counter()
        await sandbox.exec(["bash", "-c", f"exec 2>&1\n{script}"])
        seconds = time.perf_counter() - begun
        closing = time.perf_counter()
    return seconds, opened + time.perf_counter() - closing


def pair(task: Task, provider: SandboxProvider, spec: SandboxSpec, *, bare_first: bool) -> dict[str, float]:
    """Seconds of both, one after the other."""

    def alone() -> tuple[tuple[float, float], float]:
        before = processor()
        return anyio.run(bare, task, provider, spec), processor() - before

    def graded() -> tuple[float, float]:
        before = processor()
        return anyio.run(grade, task, provider, spec), processor() - before

    if bare_first:
        ((test_run, sandbox), without), (grading, whole) = alone(), graded()
    else:
        (grading, whole), ((test_run, sandbox), without) = graded(), alone()
    return {
        "graded": grading,
        "bare": test_run,
        "share": grading - test_run,
        "sandbox": sandbox,
        "processor": whole - without,
    }


def a_log() -> bytes:
    """A pytest log of the stated size and number of tests."""
    ids = [
        f"tests/unit/test_module_{n % 40}.py::TestCase{n % 9}::test_case_{n}[value-{n}]"
        for n in range(LOG_TESTS)
    ]
    summary = "\n".join(f"PASSED {test}" for test in ids)
    head = "============ test session starts ============\n"
    mark = "=========== short test summary info ============\n"
    filling = ("captured output " * 6 + "\n") * 10_000
    room = LOG_BYTES - len(head) - len(mark) - len(summary)
    return f"{head}{filling[:room]}\n{mark}{summary}\n==== {LOG_TESTS} passed in 9.9s ====\n".encode()


def milliseconds(work: Callable[[], object], runs: int) -> list[float]:
    """Processor time of `work`, each time."""
    found = []
    for _ in range(runs):
        started = time.process_time()
        work()
        found.append((time.process_time() - started) * 1000)
    return found


def swebench_parser(log: bytes) -> Callable[[], object] | None:
    """swebench's parser on `log`; None where it is not installed."""
    if find_spec("swebench") is None:
        return None
    from swe_core.builtin.swe.swebench_parsers import swebench_reader

    reader = swebench_reader("parse_log_pytest")
    return lambda: reader.parse(log)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--log-mb", type=float, default=10)
    options = parser.parse_args()
    if (obstacle := bwrap.why_not(bwrap.find_bwrap())) is not None:
        give_up(obstacle)
    component = next(iter(local.swe_sandboxes()))
    provider = component.create(component.config())
    times: dict[str, list[float]] = {side: [] for side in _SIDES}
    with tempfile.TemporaryDirectory() as directory:
        task = a_task(Path(directory), options.tests, options.log_mb)
        spec = SandboxSpec(repository=Path(directory), network="none")
        for number in range(options.runs):
            found = pair(task, provider, spec, bare_first=number % 2 == 0)
            for side, seconds in found.items():
                times[side].append(seconds)
    log = a_log()
    parse = milliseconds(lambda: parse_pytest(log), max(20, options.runs))
    theirs = swebench_parser(log)
    other = None if theirs is None else median(milliseconds(theirs, max(20, options.runs)))
    medians = {side: median(found) for side, found in times.items()}
    medians |= {"parse_ms": median(parse), "swebench_ms": other}
    table = Table(title=f"{options.tests} tests, {options.log_mb:g} MB of output, {options.runs} runs")
    for column in ("", "median"):
        table.add_column(column)
    for side, name in _SIDES.items():
        table.add_row(name, shown(medians[side]))
    table.add_row("parse_pytest, 357 KB", shown(medians["parse_ms"], "ms"))
    table.add_row("swebench's parser on the same", shown(other, "ms"))
    Report(
        benchmark="grade",
        runs=options.runs,
        medians=medians,
        ratios={"swebench_to_swe_core": ratio(other, medians["parse_ms"])},
        targets=[
            Target("share of swe-core", medians["share"], SHARE_LIMIT),
            Target("reading 357 KB", medians["parse_ms"], PARSE_LIMIT, "ms"),
        ],
        notes=[] if other is not None else ["swebench is not installed: its parser was not measured"],
    ).show(table)


if __name__ == "__main__":
    main()
