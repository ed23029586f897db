"""What a rollout that sends bodies of megabytes costs the host and the other rollouts.

    python benchmarks/hostile_body.py [--runs N] [--seconds S] [--cell C]...

Sixteen rollouts converse by turns of 2 KB, with half a second between a reply and the next call. Another one
sends six bodies of awkward shapes at once. Measured are the growth of the most memory that the process of the
proxy ever held, and the longest wait of a working rollout for a reply. Each cell has a proxy of its own, and
they take turns:

    alone     nobody attacks
    ids_31    the engine `vllm` with a context of 131,072 tokens: bodies of 31 MB cannot fit it
    ids_8     the same, with bodies that are as large as may just fit
    relay_31  the engine `openai`, which knows no context: all that is JSON of 31 MB is relayed and recorded

Proxy, engine and the hostile client are processes of their own, the proxy's on a core of its own where there
is one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from _common import Report, Target, give_up, median
from _hostile_client import MEGABYTE
from _proxies import HERE, Proxy, process, swe_core
from _workload import MAX_MODEL_LEN, Texts, opening, request, results
from interception import KILOBYTES, Client, engine, prepare
from rich.table import Table

from swe_core.errors import SweError, sentence

WORKING = 16
TURNS = 20
PAUSE = 0.5
SECONDS = 4.0
LARGE = 31
JUST = 64 * MAX_MODEL_LEN // MEGABYTE
MEMORY, WAIT = 300.0, 200.0


@dataclass
class Cell:
    """Who attacks what, and what was measured of it, run by run.

    Args:
        engine: The proxy's.
        megabytes: Of each body; 0 where nobody attacks.
        growth: MB.
        longest: Milliseconds.
    """

    title: str
    engine: str
    megabytes: int
    growth: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)


class Working(Client):
    """An agent that keeps the longest time that it waited for a reply, in seconds."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, key)
        self.longest = 0.0

    def work(self, until: threading.Event, seed: int) -> None:
        """Conversations of `TURNS` turns, one after the other."""
        texts, messages = Texts(seed), list[dict[str, Any]]()
        until.wait(PAUSE * seed / WORKING)  # or all would ask at once
        for turn in itertools.count():
            if until.wait(PAUSE):
                return
            if turn % TURNS == 0:
                messages = opening(texts.piece(KILOBYTES))
            started = time.perf_counter()
            reply = self.ask(orjson.dumps(request(messages)))
            self.longest = max(self.longest, time.perf_counter() - started)
            messages += results(reply.message, texts.piece(KILOBYTES))


def measure(proxy: Proxy, cell: Cell, seconds: float, cores: Collection[int]) -> None:
    """One run of one cell.

    Raises:
        SweError: A working rollout's request failed, or the hostile one got no answer.
    """
    (url, key), *others = proxy.open(1 + WORKING)
    agents = [Working(*other) for other in others]
    until = threading.Event()
    with ExitStack() as stack:
        hostile = None
        if cell.megabytes:
            command = [sys.executable, str(HERE / "_hostile_client.py"), url, key, str(cell.megabytes)]
            hostile = stack.enter_context(process(command, cores))
            hostile.read()
        pool = stack.enter_context(ThreadPoolExecutor(WORKING))
        stack.callback(until.set)
        works = [pool.submit(agent.work, until, seed) for seed, agent in enumerate(agents)]
        time.sleep(seconds)
        before = proxy.measured.peak()
        for agent in agents:
            agent.longest = 0.0
        if hostile is not None:
            hostile.say("now")
        time.sleep(seconds)
        if hostile is not None:
            hostile.read()
        until.set()
        for work in works:
            work.result()
    cell.growth.append(proxy.measured.peak() - before)
    cell.longest.append(1000 * max(agent.longest for agent in agents))


def main() -> None:
    cells = {
        "alone": Cell("ids, nobody attacks", "vllm", 0),
        "ids_31": Cell(f"ids, 6 × {LARGE} MB", "vllm", LARGE),
        "ids_8": Cell(f"ids, 6 × {JUST} MB", "vllm", JUST),
        "relay_31": Cell(f"relay, 6 × {LARGE} MB", "openai", LARGE),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each cell; default: 5")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"before and from each attack; default: {SECONDS:g}"
    )
    parser.add_argument("--cell", action="append", choices=cells, help="default: all")
    options = parser.parse_args()

    report = Report("hostile_body", options.runs)
    every = sorted(os.sched_getaffinity(0))
    core, others = {every[-1]}, set(every[:-1]) or set(every)
    os.sched_setaffinity(0, others)
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        folder = Path(scratch)
        tokenizer, config, _ = prepare(folder)
        with engine(config, others) as mock:
            for run, name in itertools.product(range(options.runs), options.cell or cells):
                cell = cells[name]
                try:
                    with swe_core(cell.engine, mock, tokenizer, folder / f"{name}{run}", core) as proxy:
                        measure(proxy, cell, options.seconds, others)
                except SweError as error:
                    report.notes.append(f"{cell.title}, run {run + 1}: {sentence(error)}")
    if not any(cell.growth for cell in cells.values()):
        give_up("; ".join(report.notes))
    fill(report, cells)
    report.show(table(cells))


def fill(report: Report, cells: dict[str, Cell]) -> None:
    """Medians and targets of what was measured."""
    report.medians = {
        name: {"growth_mb": median(cell.growth), "longest_wait_ms": median(cell.longest)}
        for name, cell in cells.items()
    }
    for cell in (cells["ids_31"], cells["ids_8"]):
        report.targets += [
            Target(f"{cell.title}: memory grows by", median(cell.growth), MEMORY, "MB"),
            Target(f"{cell.title}: longest wait of another rollout", median(cell.longest), WAIT, "ms"),
        ]


def table(cells: dict[str, Cell]) -> Table:
    """A row for each cell: median, least and most."""
    shown = Table(title=f"Six hostile bodies beside {WORKING} rollouts: medians (least, most)")
    shown.add_column("")
    for column in ("memory grows by", "longest wait of another rollout"):
        shown.add_column(column, justify="right")
    for cell in cells.values():
        shown.add_row(cell.title, spread(cell.growth, "MB"), spread(cell.longest, "ms"))
    return shown


def spread(values: list[float], unit: str) -> str:
    """The median, the least and the most."""
    return f"{median(values):.0f} {unit} ({min(values):.0f}, {max(values):.0f})" if values else "-"


if __name__ == "__main__":
    main()
