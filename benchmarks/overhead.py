"""What the program adds around one rollout, next to the bare test run, local and docker.

    python benchmarks/overhead.py [--runs N] [--sandbox S]... [--agent A]... [--task ID]...

Added is a rollout's whole wall time, minus the phase `agent`, minus `grade.test_seconds` (the bare test run):
opening and closing the sandbox, recording the base, exporting the patch, and of the grade the fresh sandbox,
applying the patch and the verdict. All of it is read from the records, `rollouts.jsonl`. What the phase
`agent` holds besides the agent (registering the rollout, the relay, Pi's files) is part of the benchmark
`first_request`. One rollout at a time, on the demo's tasks; `pi` is answered from recordings, `oracle`
applies the gold patch and needs no LLM.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from _common import SANDBOXES, Report, Target, give_up, median, ratio, run, shown, usable
from rich.table import Table

from swe_core.api.records import Rollout
from swe_core.errors import SweError, sentence

AGENTS = ("pi", "oracle")
LIMITS = {"local": 1.0, "docker": 4.0}


def tests(rollout: Rollout) -> float:
    """The bare test run, seconds."""
    return rollout.grade.test_seconds if rollout.grade else 0.0


def added(rollout: Rollout) -> float:
    """What the program added, seconds."""
    return rollout.seconds - (rollout.phases.agent or 0.0) - tests(rollout)


def rest(rollout: Rollout) -> float:
    """What is in no phase: closing the agent's sandbox, writing the records. Seconds."""
    return rollout.seconds - sum(value or 0.0 for _, value in rollout.phases)


ROWS: dict[str, Callable[[Rollout], float]] = {
    "open": lambda rollout: rollout.phases.open or 0.0,
    "prepare": lambda rollout: rollout.phases.prepare or 0.0,
    "export": lambda rollout: rollout.phases.export or 0.0,
    "close": rest,
    "grade_without_tests": lambda rollout: (rollout.phases.grade or 0.0) - tests(rollout),
    "added": added,
    "tests": tests,
    "agent": lambda rollout: rollout.phases.agent or 0.0,
    "whole": lambda rollout: rollout.seconds,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="rollouts per task, sandbox and agent; default: 1"
    )
    parser.add_argument("--sandbox", action="append", choices=SANDBOXES, help="default: both")
    parser.add_argument("--agent", action="append", choices=AGENTS, help="default: both")
    parser.add_argument("--task", action="append", default=[], metavar="ID", help="default: the whole demo")
    options = parser.parse_args()

    report = Report("overhead", options.runs)
    sandboxes = usable(options.sandbox or SANDBOXES)
    report.notes += [reason for reason in sandboxes.values() if reason is not None]
    sides = {
        f"{sandbox}_{agent}": (sandbox, agent)
        for agent in options.agent or AGENTS
        for sandbox, reason in sandboxes.items()
        if reason is None
    }
    only = [part for task in options.task for part in ("--task", task)]
    graded: dict[str, list[Rollout]] = {name: [] for name in sides}
    for _ in range(options.runs):
        for name, (sandbox, agent) in sides.items():
            try:
                with run(["--tasks", "demo", "--sandbox", sandbox, "--agent", agent, *only]) as records:
                    rollouts = records.rollouts()
            except SweError as error:
                report.notes.append(f"{sandbox} with {agent} is skipped: {sentence(error)}")
                continue
            # Only a grade whose tests ran to their end is a whole rollout.
            whole = [r for r in rollouts if r.grade is not None and r.grade.test_exit_code is not None]
            graded[name] += whole
            left_out = [f"{r.task_id} ({r.outcome})" for r in rollouts if r not in whole]
            if left_out:
                report.notes.append(f"{sandbox} with {agent}: left out {', '.join(left_out)}")
    measured = {name: rollouts for name, rollouts in graded.items() if rollouts}
    if not measured:
        give_up("; ".join(report.notes) or "there is nothing to measure")

    figures = {
        name: {row: median(map(value, rollouts)) for row, value in ROWS.items()}
        for name, rollouts in measured.items()
    }
    report.medians = {f"{s}_{a}": figures.get(f"{s}_{a}") for s in SANDBOXES for a in AGENTS}
    table = Table(title=f"What the program adds to a rollout, medians of {_counts(measured)} rollouts")
    table.add_column("seconds")
    for name in figures:
        table.add_column(name.replace("_", ", "), justify="right")
    for row in ROWS:
        if row == "added":
            table.add_section()
        table.add_row(row.replace("_", " "), *(shown(column[row]) for column in figures.values()))
    report.ratios = {
        f"{name}_added_to_tests": ratio(column["added"], column["tests"]) for name, column in figures.items()
    }
    for agent in AGENTS:
        local, docker = (figures.get(f"{sandbox}_{agent}", {}).get("added") for sandbox in SANDBOXES)
        report.ratios[f"docker_to_local_{agent}"] = ratio(docker, local)
    table.add_row("added / tests", *(shown(report.ratios[f"{name}_added_to_tests"], "x") for name in figures))
    for sandbox in SANDBOXES:
        for agent in AGENTS:
            figure = figures.get(f"{sandbox}_{agent}", {}).get("added")
            report.targets.append(Target(f"{sandbox}, {agent}: added", figure, LIMITS[sandbox]))
    report.show(table)


def _counts(measured: dict[str, list[Rollout]]) -> str:
    return " / ".join(str(count) for count in dict.fromkeys(len(rollouts) for rollouts in measured.values()))


if __name__ == "__main__":
    main()
