"""What OpenEnv's servers cost, and ours that speak their protocols.

    python benchmarks/openenv_servers.py [--runs N] [--no-peers] [--share F]

Part "capture": the processor time of the capture server per LLM call, measured as `interception` measures its
proxies, in the same run and with the same engine:

    ours        sends prompts as ids, streams, and has each turn on disk before its reply is complete
    OpenEnv     its own server (level "tokens"): the engine renders and tokenises each prompt whole, which is
                not counted, and sends it back; a stream is replayed when the reply is complete

Part "server": what the environment server adds to a rollout. It is the wall time of OpenEnv's client from
connecting to closing, minus the rollout's own on its record. One client at a time has an episode of a demo
task, and the agent applies the gold patch.

The file is not named after the package, which it would hide from the processes that it starts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from _cells import CELLS
from _client import MockEngine
from _common import SWE_CORE, Report, Target, give_up, median, ratio, shown
from _peers import OPENENV
from _proxies import Measured, capture, openenv, process
from interception import IDLE, Side, engine, prepare, run, scaled
from rich.console import Group
from rich.table import Table

from swe_core.errors import SweError, sentence
from swe_core.system.ports import free_port

START_SECONDS = 60.0
OURS, THEIRS = "ours", "openenv"
TITLES = {OURS: "ours", THEIRS: "OpenEnv"}
MEASURED = ("unrelated", "session", "long", "streamed", "streamed_session", "streamed_growing")
MEMORY = "capture_idle_mb"
LIMIT = 1.0
"""Our processor time to OpenEnv's, at most."""
ADDED = "server_added_ms"
ADDED_LIMIT = 50.0
EPISODES = 20


def measure_capture(report: Report, share: float, *, no_peers: bool) -> Table | None:
    """Measure the capture servers; None where none ran."""
    every = sorted(os.sched_getaffinity(0))
    core, others = {every[-1]}, set(every[:-1]) or set(every)
    os.sched_setaffinity(0, others)
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        tokenizer, config, characters = prepare(folder)
        mock = MockEngine(stack.enter_context(engine(config, others)))
        sides = {OURS: Side(lambda: capture(mock.url, tokenizer, folder / "capture", core))}
        if not no_peers:
            try:
                OPENENV.install()
                sides[THEIRS] = Side(lambda: openenv(OPENENV.python, mock.url, core))
            except SweError as error:
                report.notes.append(f"OpenEnv is skipped: {sentence(error)}")
        run(sides, mock, scaled(share, characters), report.runs, stack, MEASURED)
    os.sched_setaffinity(0, every)
    report.notes += [
        f"{TITLES[name]} is skipped: {side.problem}"
        for name, side in sides.items()
        if side.problem is not None
    ]
    if not any(side.cpu["unrelated"] for side in sides.values()):
        return None
    nothing = Side(start=ExitStack)
    known = {name: sides.get(name, nothing) for name in TITLES}
    for cell in MEASURED:
        medians = {name: median(side.cpu[cell]) for name, side in known.items()}
        report.medians[f"capture_{cell}_ms"] = medians
        report.ratios[f"capture_{cell}_openenv_to_ours"] = ratio(medians[THEIRS], medians[OURS])
        figure = ratio(medians[OURS], medians[THEIRS])
        report.targets.append(Target(f"capture, {CELLS[cell].title}: ours to OpenEnv", figure, LIMIT, "x"))
    report.medians[MEMORY] = {name: side.idle for name, side in known.items()}
    return _capture_table(report)


def _capture_table(report: Report) -> Table:
    table = Table(title=f"Processor time of the capture server per call, medians of {report.runs} rounds")
    table.add_column("")
    for title in TITLES.values():
        table.add_column(title, justify="right")
    units = {f"capture_{cell}_ms": (CELLS[cell].title, "ms") for cell in MEASURED}
    for key, (title, unit) in {**units, MEMORY: (f"{IDLE} idle sessions", "MB")}.items():
        figures: Any = report.medians[key]
        table.add_row(title, *(shown(figures[name], unit) for name in TITLES))
    return table


def measure_server(report: Report, share: float) -> Table:
    """Measure what the environment server adds to rollouts, each with a client of its own."""
    from openenv.core.generic_client import GenericEnvClient

    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        settings = ["run.plugins=[]", "run.agent=oracle", "sandbox.local.unisolated=true"]
        sets = [word for setting in settings for word in ("--set", setting)]
        out = str(Path(scratch) / "run")
        command = [SWE_CORE, "openenv", "serve", "--port", str(port := free_port()), "--out", out, *sets]
        added = []
        with process(command, os.sched_getaffinity(0), talks=False) as server:
            url = f"http://127.0.0.1:{port}"
            wait(url, server)
            for number in range(max(2, round(EPISODES * report.runs * share))):
                began = time.perf_counter()
                with GenericEnvClient(base_url=url, message_timeout_s=600).sync() as client:
                    client.reset(index=number % 6)
                    end = client.step({"type": "run_agent"})
                if end.reward != 1.0:
                    raise SweError(f"a rollout was not resolved: {end.observation['reason']}")
                added.append((time.perf_counter() - began - end.observation["seconds"]) * 1000)
    report.medians[ADDED] = {"median": median(added), "longest": max(added)}
    report.targets.append(Target("server: added to a rollout", median(added), ADDED_LIMIT, "ms"))
    table = Table(title=f"What the environment server adds, {len(added)} rollouts")
    for title in ("median", "longest"):
        table.add_column(title, justify="right")
    table.add_row(shown(median(added), "ms"), shown(max(added), "ms"))
    return table


def wait(url: str, server: Measured) -> None:
    """Wait until the server answers.

    Raises:
        SweError: It has ended, or does not start.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health"):
            return
        if server.ended():
            raise SweError(f"the environment server ended: {server.last_words()}")
        time.sleep(0.05)
    raise SweError("the environment server does not start")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="rounds; default: 3")
    parser.add_argument("--no-peers", action="store_true", help="measure ours only, install nothing")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the requests, turns and sessions; default: 1"
    )
    options = parser.parse_args()

    report = Report("openenv_servers", options.runs)
    table = measure_capture(report, options.share, no_peers=options.no_peers)
    if table is None:
        give_up("; ".join(report.notes) or "there is nothing to measure")
    try:
        table_of_server = measure_server(report, options.share)
    except SweError as error:
        report.notes.append(f"the environment server is skipped: {sentence(error)}")
        table_of_server = Table()
    report.show(Group(table, table_of_server))


if __name__ == "__main__":
    main()
