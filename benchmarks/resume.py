"""Opening the directory of a long run, next to parsing its lines with the standard library.

    python benchmarks/resume.py [--runs N] [--rollouts N]

The directory has finished rollouts as an evaluation leaves them, each with a verdict of 40 tests and a folder
of records. `resume` is what `swe-core run --resume` does with it before its first rollout: find what is
finished, look for what is not, cut off what is torn. `report` is what `swe-core report` reads: every rollout,
validated. `command` is all of `swe-core report RUN --json`, with the start of the program. `json` is
`json.loads` of each line, and no more. Wall time, each in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from _common import SWE_CORE, Report, Target, median, ratio, shown
from rich.table import Table

from swe_core.api.engine import Usage
from swe_core.api.grader import Grade
from swe_core.api.records import Phases, Rollout
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor

TESTS = 40
LIMIT = 1.0
SIDES = {
    "resume": "from swe_core.rollout.run_directory import RunDirectory\n"
    "from swe_core.system.redaction import Redactor",
    "report": "from swe_core.rollout.run_directory import RunDirectory",
    "json": "import json",
}
WORK = {
    "resume": "RunDirectory.resume(path, Redactor(), ['cancelled']).finished()",
    "report": "RunDirectory.open(path).rollouts()",
    "json": "[json.loads(line) for line in (path / 'rollouts.jsonl').open('rb')]",
}


def finished(number: int) -> Rollout:
    """A rollout as an evaluation leaves it."""
    resolved = number % 3 == 0
    tests = {f"tests/test_module_{n % 4}.py::TestClass::test_case[{n}-value]": "PASSED" for n in range(TESTS)}
    return Rollout(
        id=f"organisation__project-{number}-0",
        task_id=f"organisation__project-{number}",
        attempt=0,
        agent="mini",
        sandbox="docker",
        engine="openai",
        model="a-model",
        outcome="resolved" if resolved else "unresolved",
        reward=float(resolved),
        grade=Grade.model_validate(
            {"resolved": resolved, "reason": "", "fail_to_pass": {}, "pass_to_pass": tests}
        ),
        turns=30,
        usage=Usage(prompt_tokens=300_000, completion_tokens=9_000),
        patch_bytes=2_000,
        agent_exit_code=0,
        phases=Phases(open=0.3, prepare=0.2, agent=300.0, export=0.1, grade=20.0),
        started_at=datetime.now(UTC),
        seconds=320.6,
    )


def fill(path: Path, rollouts: int) -> None:
    """Make the directory of a run that has one rollout left."""
    run = RunDirectory.create(path, new_run_info({}, {}, rollouts + 1, []), Redactor())
    lines = []
    for number in range(rollouts):
        rollout = finished(number)
        folder = run.path / "rollouts" / rollout.id
        folder.mkdir()
        for name in ("turns.jsonl", "transcript.jsonl", "agent.log", "patch.diff", "grade.json", "test.log"):
            (folder / name).touch()
        lines.append(rollout.model_dump_json())
    (run.path / "rollouts.jsonl").write_text("".join(f"{line}\n" for line in lines))


def timed(side: str, path: Path) -> float:
    """Seconds of one side's work, without its imports."""
    script = (
        f"import sys, time\nfrom pathlib import Path\n{SIDES[side]}\npath = Path(sys.argv[1])\n"
        f"started = time.perf_counter()\n{WORK[side]}\nprint(time.perf_counter() - started)"
    )
    argv = [sys.executable, "-c", script, str(path)]
    return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def command(path: Path) -> float:
    """Seconds of `swe-core report`."""
    started = time.perf_counter()
    subprocess.run([SWE_CORE, "report", str(path), "--json"], capture_output=True, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="default: 7")
    parser.add_argument("--rollouts", type=int, default=10_000, help="default: 10000")
    options = parser.parse_args()

    sides: dict[str, Callable[[Path], float]] = {side: partial(timed, side) for side in SIDES}
    sides["command"] = command
    times: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        path = Path(scratch, "run")
        fill(path, options.rollouts)
        for _ in range(options.runs):
            for side, measure in sides.items():
                times[side].append(measure(path))
        size = (path / "rollouts.jsonl").stat().st_size

    medians = {side: median(values) for side, values in times.items()}
    report = Report("resume", options.runs)
    report.medians |= medians
    for side in ("resume", "report"):
        report.ratios[f"{side}_to_json"] = ratio(medians[side], medians["json"])
        report.targets.append(Target(f"{side} of {options.rollouts} rollouts", medians[side], LIMIT))
    report.notes.append(f"rollouts.jsonl has {size / 1e6:.1f} MB")
    table = Table(title=f"Opening a run of {options.rollouts} rollouts, medians of {options.runs}")
    for column in ("", "median", "slowest"):
        table.add_column(column, justify="right" if column else "left")
    for side, values in times.items():
        table.add_row(side, shown(medians[side]), shown(max(values)))
    report.show(table)


if __name__ == "__main__":
    main()
