"""What it costs to run rollouts in other processes, and what the driver of many nodes costs.

    python benchmarks/scale.py [--runs N] [--rollouts N] [--slots N] [--most N]

Light rollouts of two seconds (`_light_rollouts`: three calls, no sandbox) with `--executor local`, and with
`--executor ray` on two nodes of a private cluster. The ideal time is that of full slots. Then the driver
alone, in virtual time: 64 simulated nodes with 128 slots each and rollouts of two minutes, from 100 rollouts
to `--most`. What the simulated nodes do to make a rollout is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from _common import SWE_CORE, Report, Target, give_up, median, ratio, shown
from _virtual_time import run as run_virtually
from many import watched
from rich.table import Table

from swe_core.api.executor import ExecutorRun
from swe_core.rollout.nodes.executor import NodeExecutor
from swe_core.rollout.nodes.pool import NodePool
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.rollout.runner import Runner
from swe_core.system.redaction import Redactor
from swe_testing import nodes as simulated
from swe_testing.nodes import SimulatedNode
from swe_testing.records import make_request, make_task

CALLS, PAUSE = 3, 1.0
SECONDS = (CALLS - 1) * PAUSE
"""Seconds of a light rollout."""
TASKS = 10
WORKERS = 2
NODES, SLOTS, MINUTES = 64, 128, 120.0
SIDES = {"local": (), "ray": ("--executor", "ray", "--workers", str(WORKERS))}


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Args:
        wall: Seconds, without the start and the end of the program.
        driver: Processor seconds of the driver's process.
        all: Processor seconds of all processes.
    """

    wall: float
    driver: float
    all: float


def one(rollouts: int, concurrency: int, options: tuple[str, ...]) -> Cost:
    """Run so many light rollouts."""
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        out, statements = Path(scratch, "run"), Path(scratch, "statements.json")
        statements.write_text(json.dumps(["Say hello."] * TASKS))
        reply = {"message": {"role": "assistant", "content": "hello"}}
        lines = [{"task_id": f"statement-{number}", "replies": [reply] * CALLS} for number in range(TASKS)]
        recording = Path(scratch, "replies.jsonl")
        recording.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        plugin = str(Path(__file__).with_name("_light_rollouts.py"))
        argv = [
            SWE_CORE, "run", "-p", plugin, "--tasks", "statements", "--agent", "talk", "--sandbox", "here",
            "--grader", "coin", "--engine", "replay", "--recording", str(recording), "--attempts",
            str(rollouts // TASKS), "--concurrency", str(concurrency), "--out", str(out), "--set",
            f"tasks.statements.file={statements}", "--set", f"agent.talk.calls={CALLS}", "--set",
            f"agent.talk.pause={PAUSE}", *options,
        ]  # fmt: skip
        before, driver = resource.getrusage(resource.RUSAGE_CHILDREN), 0.0
        quiet = subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet) as process:
            while process.poll() is None:
                driver = (watched(process.pid) or (0.0, driver))[1]
                time.sleep(0.02)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not (out / "run.json").exists():
            give_up("swe-core run wrote no run directory")
        found = RunDirectory.open(out).rollouts()
        if len(found) != rollouts or any(rollout.reward is None for rollout in found):
            give_up(f"{len(found)} of {rollouts} rollouts finished, or some without a verdict")
        began = min(rollout.started_at.timestamp() for rollout in found)
        ended = max(rollout.started_at.timestamp() + rollout.seconds for rollout in found)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Cost(ended - began, driver, used)


class Simulation(NodeExecutor):
    """Rollouts on simulated nodes."""

    @asynccontextmanager
    async def nodes(self, pool: NodePool, run: ExecutorRun) -> AsyncIterator[None]:
        for number in range(NODES):
            pool.add(SimulatedNode(f"node-{number}", SLOTS, MINUTES))
        pool.no_more_nodes()
        yield


async def drive(rollouts: int, path: Path) -> tuple[float, float]:
    """Return the processor seconds of the driver and the virtual seconds of so many rollouts."""
    import anyio

    spent, pack = [0.0], simulated.packed

    def packed(*arguments: object, **more: object) -> bytes:
        began = time.process_time()
        made = pack(*arguments, **more)  # type: ignore[arg-type]  # passed on as they came
        spent[0] += time.process_time() - began
        return made

    async def inline(function: object, *arguments: object, **more: object) -> object:
        return function(*arguments)  # type: ignore[operator]  # as `run_sync` calls it

    executor = Simulation()
    run = RunDirectory.create(path, new_run_info({}, {}, rollouts, []), Redactor())
    served = ExecutorRun({}, {}, path, NODES * SLOTS, None, lambda: nullcontext())  # type: ignore[arg-type, return-value]  # no rollout runs here
    requests = [
        make_request(make_task(f"t-{number}")).model_copy(update={"id": f"t-{number}-0"})
        for number in range(rollouts)
    ]
    with (
        patch.object(simulated, "packed", packed),
        patch("swe_core.rollout.nodes.node.run_sync", inline),
        patch("swe_core.rollout.nodes.executor.serve_metrics", lambda pool: nullcontext()),
    ):
        async with executor.open(served):
            runner = Runner(requests, executor, None, run, [], NODES * SLOTS)
            began, at = time.process_time(), anyio.current_time()
            await runner.run_all()
            return time.process_time() - began - spent[0], anyio.current_time() - at


def simulate(rollouts: int) -> tuple[float, float]:
    """Return the driver's processor seconds a rollout, and its share of a core."""
    memory = Path("/dev/shm")  # no disk: it is the processor that counts
    with tempfile.TemporaryDirectory(prefix="swe-bench-", dir=memory if memory.is_dir() else None) as scratch:
        used, lasted = run_virtually(drive, rollouts, Path(scratch, "run"))
        shutil.rmtree(Path(scratch, "run"))
    return used / rollouts, used / lasted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="default: 3")
    parser.add_argument("--rollouts", type=int, default=1000, help="default: 1,000")
    parser.add_argument("--slots", type=int, default=25, help="of a node; default: 25")
    parser.add_argument("--most", type=int, default=10_000, help="in virtual time; default: 10,000")
    options = parser.parse_args()
    concurrency = WORKERS * options.slots

    few = {side: one(TASKS, TASKS, chosen) for side, chosen in SIDES.items()}
    costs: dict[str, list[Cost]] = {side: [] for side in SIDES}
    for _ in range(options.runs):
        for side, chosen in SIDES.items():
            costs[side].append(one(options.rollouts, concurrency, chosen))

    report = Report("scale", options.runs)
    ideal, more = SECONDS * options.rollouts / concurrency, options.rollouts - TASKS
    table = Table(title=f"{options.rollouts:,} rollouts of {SECONDS:g} s, {concurrency} at a time")
    for column in ("", "wall to ideal", "driver a rollout", "all processes a rollout"):
        table.add_column(column, justify="right" if column else "left")
    for side, found in costs.items():
        figures = {
            "wall": median(cost.wall for cost in found),
            "driver_ms": median(1000 * (cost.driver - few[side].driver) / more for cost in found),
            "all_ms": median(1000 * (cost.all - few[side].all) / more for cost in found),
        }
        report.medians[side] = figures
        report.ratios[f"{side}_to_ideal"] = ratio(figures["wall"], ideal)
        table.add_row(
            side,
            shown(report.ratios[f"{side}_to_ideal"], "x"),
            shown(figures["driver_ms"], "ms"),
            shown(figures["all_ms"], "ms"),
        )
    report.ratios["ray_per_core"] = ratio(report.medians["local"]["all_ms"], report.medians["ray"]["all_ms"])
    counts, driven = [], {}
    count = 100
    while count <= options.most:
        counts.append(count)
        count *= 10
    for count in counts:
        driven[count] = simulate(count)
        table.add_row(f"simulated, {count:,}", "", shown(1000 * driven[count][0], "ms"), "")
    report.medians["simulated_ms"] = {str(count): 1000 * cost for count, (cost, _) in driven.items()}
    report.ratios["driver_of_64_nodes"] = share = driven[counts[-1]][1]
    report.ratios["growth"] = ratio(driven[counts[-1]][0], driven[counts[0]][0])
    report.targets = [
        Target("ray, wall to ideal", report.ratios["ray_to_ideal"], 1.3, "x"),
        Target("ray, driver a rollout", report.medians["ray"]["driver_ms"], 10, "ms"),
        Target(f"processor seconds a second, driver of {NODES} nodes with {SLOTS} slots", share, 1.0, ""),
    ]
    report.notes.append("`ray_per_core`: rollouts per processor second, ray to local")
    report.show(table)


if __name__ == "__main__":
    main()
