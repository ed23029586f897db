"""What the environment server adds to a rollout.

    python benchmarks/openenv_servers.py [--runs N] [--share F]

It is the wall time of OpenEnv's client from connecting to closing, minus the rollout's own on its record. One
client at a time has an episode of a demo task, and the agent applies the gold patch.

The file is not named after the package, which it would hide from the processes that it starts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from _common import SWE_CORE, Report, Target, give_up, median, shown
from _proxies import Measured, process
from rich.table import Table

from swe_core.errors import SweError, sentence
from swe_core.system.ports import free_port

START_SECONDS = 60.0
ADDED = "server_added_ms"
ADDED_LIMIT = 50.0
EPISODES = 20


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
    parser.add_argument("--share", type=float, default=1.0, help="of the rollouts; default: 1")
    options = parser.parse_args()

    report = Report("openenv_servers", options.runs)
    try:
        table = measure_server(report, options.share)
    except SweError as error:
        give_up(sentence(error))
    report.show(table)


if __name__ == "__main__":
    main()
