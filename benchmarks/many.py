"""What many rollouts at once cost the host: the memory and the processor time of the program's own process.

    python benchmarks/many.py [--runs N] [--rollouts N] [--concurrency N]

The agent `mini` on demo tasks in local sandboxes, answered from recordings and graded by the tasks' tests.
The sandboxes' processes are not counted: only `swe-core run` itself, whose event loop, server, recorder and
grader serve all of them. The other side is the same run with one rollout at a time, in turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _common import SWE_CORE, Report, Target, give_up, median, ratio, shown
from rich.table import Table

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_core.rollout.run_directory import RunDirectory

TASKS = ("demo__csvtidy-1", "demo__memofn-1", "demo__runall-1", "demo__slotbook-1")
LIMIT_MB = 250.0
_LOOK = 0.02
"""Seconds between two looks at the process; the last one is at most so much too early."""


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Args:
        memory: The process's peak resident memory, MB.
        processor: Its processor time, user and system, seconds.
        wall: Seconds.
        finished: Rollouts with a verdict.
    """

    memory: float
    processor: float
    wall: float
    finished: int


def one(rollouts: int, concurrency: int) -> Cost:
    """Run so many rollouts and watch the process."""
    attempts = -(-rollouts // len(TASKS))
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        out = Path(scratch, "run")
        argv = [SWE_CORE, "run", "--agent", "mini", "--sandbox", "local", "--out", str(out)]
        argv += ["--attempts", str(attempts), "--concurrency", str(concurrency)]
        argv += [word for task in TASKS[:rollouts] for word in ("--task", task)]
        started = time.perf_counter()
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            memory = processor = 0.0
            while process.poll() is None:
                memory, processor = watched(process.pid) or (memory, processor)
                time.sleep(_LOOK)
        if not (out / "run.json").exists():
            give_up("swe-core run wrote no run directory")
        found = RunDirectory.open(out).rollouts()
        verdicts = sum(rollout.reward is not None for rollout in found)
        return Cost(memory, processor, time.perf_counter() - started, verdicts)


def watched(pid: int) -> tuple[float, float] | None:
    """Peak memory (MB) and processor time (s) of a process; None where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    if not peak:  # it has ended, and waits to be waited for
        return None
    user, system = int(stat[11]), int(stat[12])
    return int(peak[0]) * 1024 / 1e6, (user + system) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="default: 3")
    parser.add_argument("--rollouts", type=int, default=64, help="default: 64")
    parser.add_argument("--concurrency", type=int, default=16, help="default: 16")
    options = parser.parse_args()
    if (obstacle := why_not(find_bwrap())) is not None:
        give_up(obstacle)

    costs: dict[str, list[Cost]] = {"at_once": [], "in_turn": []}
    for _ in range(options.runs):
        costs["at_once"].append(one(options.rollouts, options.concurrency))
        costs["in_turn"].append(one(min(options.rollouts, len(TASKS)), 1))

    report = Report("many", options.runs)
    table = Table(title=f"swe-core's own process, medians of {options.runs} runs")
    for column in ("", "rollouts", "peak memory", "processor per rollout", "wall per rollout"):
        table.add_column(column, justify="right" if column else "left")
    names = {"at_once": f"{options.concurrency} at once", "in_turn": "one at a time"}
    for side, found in costs.items():
        figures = {
            "memory_mb": median(cost.memory for cost in found),
            "processor_per_rollout": median(cost.processor / max(cost.finished, 1) for cost in found),
            "wall_per_rollout": median(cost.wall / max(cost.finished, 1) for cost in found),
        }
        report.medians[side] = figures
        table.add_row(
            names[side],
            str(found[0].finished),
            shown(figures["memory_mb"], "MB"),
            shown(figures["processor_per_rollout"]),
            shown(figures["wall_per_rollout"]),
        )
        report.ratios[f"{side}_processor_to_wall"] = ratio(
            figures["processor_per_rollout"], figures["wall_per_rollout"]
        )
    memory = median(cost.memory for cost in costs["at_once"])
    report.targets = [Target(f"peak memory, {options.concurrency} at once", memory, LIMIT_MB, "MB")]
    missing = [options.rollouts - cost.finished for cost in costs["at_once"]]
    if any(count > 0 for count in missing):
        report.notes.append(f"rollouts without a verdict, by run: {missing}")
    report.show(table)


if __name__ == "__main__":
    main()
