"""`swe-core sandboxes`: list sandboxes and remove those of dead runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import orjson

from swe_core.cli.options import plugin_options, settings_and_plugins, settings_options
from swe_core.system.plural import counted
from swe_core.system.printable import one_line

if TYPE_CHECKING:
    from swe_core.api.sandbox import SandboxEntry, SandboxProvider

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE = 3.0
"""Seconds without an answer before a message."""
_RUN = {"alive": "alive", "gone": "gone", "unknown": "not from here"}
"""Owner state → text in the table."""


def _provider_options(command: F) -> F:
    """Add the options that choose a provider, and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        settings_options,
        click.option("--sandbox", metavar="NAME", help="Sandbox provider. [default: local]"),
        plugin_options,
    ):
        command = option(command)
    return command


@click.group()
def sandboxes() -> None:
    """List sandboxes and remove those of dead runs."""


@sandboxes.command("list")
@_provider_options
def list_sandboxes(config: Path | None, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """List the sandboxes of all runs, with the state of each run.

    The state of a run on another host or in another container is unknown: "not from here".

    Exit code: 1 when the provider does not answer.
    """
    from swe_core.system.event_loop import run

    provider = _provider(config, sets, options)
    with _patience():
        found = sorted(run(provider.list), key=_age, reverse=True)
    if as_json:
        click.echo(orjson.dumps([_as_dict(entry) for entry in found], option=orjson.OPT_INDENT_2))
        return
    if not found:
        click.echo("There are no sandboxes.")
        return
    from rich.table import Table

    from swe_core.report.text import Uncut
    from swe_core.system.safe_console import SafeConsole

    rows = [_row(entry) for entry in found]
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = [name for name in rows[0] if any(row[name] for row in rows)]  # without empty columns
    for name in shown:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    SafeConsole(highlight=False, markup=False).print(Uncut(table), crop=False)
    if gone := sum(entry.owner == "gone" for entry in found):
        click.echo(
            f"\nDead runs left {gone} of {len(found)}: `swe-core sandboxes reap` with the same options "
            "removes them."
        )


@sandboxes.command()
@_provider_options
def reap(config: Path | None, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Remove the sandboxes of dead runs and print their number.

    The next run with this provider does the same. Sandboxes of a live run, or of a run that is not from here,
    stay.

    Exit code: 1 when the provider does not answer.
    """
    from swe_core.api.contracts import reap as remove
    from swe_core.system.event_loop import run

    provider = _provider(config, sets, options)
    with _patience():
        removed = run(remove, provider)
    if as_json:
        click.echo(orjson.dumps({"removed": removed}))
    else:
        click.echo(f"Removed {counted(removed, 'sandbox', 'sandboxes')}.")


def _provider(config: Path | None, sets: Sequence[str], options: dict[str, Any]) -> SandboxProvider:
    settings, plugins = settings_and_plugins(config, sets, options)
    from swe_core.run.components import resolve_component

    return cast(
        "SandboxProvider", resolve_component(settings, plugins, "sandbox", settings.run.sandbox).create()
    )


@contextmanager
def _patience() -> Iterator[None]:
    """Print a message when the provider takes long to answer, because it retries for a while."""
    said = "no answer yet, still trying: press Ctrl-C to stop"
    timer = threading.Timer(_PATIENCE, click.echo, (said,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _age(entry: SandboxEntry) -> timedelta:
    return timedelta.max if entry.created is None else datetime.now(UTC) - entry.created


def _row(entry: SandboxEntry) -> dict[str, str]:
    """Return the printable cells of one sandbox; its labels may be foreign text."""
    age = "" if entry.created is None else str(timedelta(seconds=max(0, int(_age(entry).total_seconds()))))
    return {
        "sandbox": one_line(entry.id),
        "run": _RUN[entry.owner],
        "age": age,
        "image": one_line(entry.image or ""),
        "flavor": one_line(entry.flavor or ""),
        "details": one_line(", ".join(f"{name} {value}" for name, value in entry.details.items())),
    }


def _as_dict(entry: SandboxEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "owner": entry.owner,
        "image": entry.image,
        "flavor": entry.flavor,
        "created": entry.created and entry.created.isoformat(),
        "details": dict(entry.details),
    }
