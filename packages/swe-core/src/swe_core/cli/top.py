"""`swe-core top`: show the nodes of a run that is running."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import orjson
from prometheus_client.parser import text_string_to_metric_families
from rich.live import Live
from rich.table import Table

from swe_core.cli.options import run_argument
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.execute import SERVER_FILE
from swe_core.system.safe_console import SafeConsole

_PACE = 2.0
"""Seconds between two looks."""
_PATIENCE = 10.0
"""Seconds that the run may take to answer."""
_HERE = "this process"
"""The node of a run whose rollouts run in its own process."""


@click.command()
@run_argument
@click.option("--once", is_flag=True, help="Print one table, over two seconds, and exit.")
def top(directory: Path, once: bool) -> None:
    """Show the nodes of RUN while it runs: slots, rollouts, errors, tokens per second.

    Ctrl-C ends the display.
    """
    run, console = RunDirectory.open(directory), SafeConsole(highlight=False)
    before = _look(directory)
    if once:
        time.sleep(_PACE)
        console.print(_table(run, before, _look(directory)))
        return
    with Live(_table(run, before, before), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_PACE)
            try:
                now = _look(directory)
            except UsageError:  # the run has ended
                return
            live.update(_table(run, before, now), refresh=True)
            before = now


@dataclass(slots=True)
class _Look:
    """The metrics at a time, by node and name; those with a label have it behind the name."""

    at: float = field(default_factory=time.monotonic)
    values: defaultdict[str, defaultdict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )


def _look(directory: Path) -> _Look:
    try:
        server = orjson.loads((directory / SERVER_FILE).read_bytes())
        key = {"Authorization": f"Bearer {server['metrics_token']}"}
        request = urllib.request.Request(f"{server['url']}/metrics", headers=key)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=_PATIENCE) as response:
            text = response.read().decode()
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
        told = f" ({error})" if isinstance(error, urllib.error.URLError) else ""
        raise UsageError(
            f"the run {str(directory)!r} does not run here{told}: give one that is running on this host"
        ) from None
    look = _Look()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels: Mapping[str, str] = sample.labels
            node = labels.get("node", _HERE)
            kind = labels.get("kind") or labels.get("outcome") or labels.get("ended") or ""
            look.values[node][f"{sample.name}:{kind}"] += sample.value
    return look


def _table(run: RunDirectory, before: _Look, now: _Look) -> Table:
    outcomes = Counter(head.outcome for head in run.heads())
    done = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "none"
    of = "" if run.info.planned is None else f" of {run.info.planned}"
    table = Table(title=f"{outcomes.total()}{of} rollouts finished: {done}", title_justify="left", box=None)
    table.add_column("node")
    for name in ("state", "rollouts", "slots", "finished", "errors", "lost", "calls", "failed", "tokens/s"):
        table.add_column(name, justify="right")
    seconds = max(now.at - before.at, 1e-9)
    for node, values in sorted(now.values.items()):
        sampled = "swe_tokens_total:completion"
        here = node == _HERE
        ended = sum(count for name, count in values.items() if name.startswith("swe_node_finished_total:"))
        table.add_row(
            node,
            "up" if here or values["swe_node_up:"] else "out",
            f"{values['swe_rollouts_open:'] if here else values['swe_node_rollouts:']:.0f}",
            f"{run.info.settings['run']['concurrency'] if here else values['swe_node_slots:']:.0f}",
            f"{outcomes.total() if here else ended:.0f}",
            f"{outcomes['error'] if here else values['swe_node_finished_total:error']:.0f}",
            f"{values['swe_node_lost_total:']:.0f}",
            f"{values['swe_turns_total:completed']:.0f}",
            f"{values['swe_turns_total:failed']:.0f}",
            f"{(values[sampled] - before.values[node][sampled]) / seconds:,.0f}",
        )
    return table
