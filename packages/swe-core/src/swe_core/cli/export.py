"""`swe-core export`: write the data of runs in a format that other programs read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from swe_core.api.records import Outcome
from swe_core.cli.options import run_arguments
from swe_core.errors import UsageError

_FORMATS = ("jsonl", "parquet", "sft", "atif")
_NAMED = 3
"""Damaged rollouts that are named."""


@click.command()
@run_arguments
@click.option(
    "--format",
    "format_",
    required=True,
    metavar="|".join(_FORMATS),
    help="Training rows (jsonl, parquet), conversations for fine-tuning (sft), or trajectories for "
    "Harbor (atif).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="New folder of the data and its card. [default: NAME-FORMAT here, after the run's folder]",
)
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice(get_args(Outcome)),
    help="Outcome of the rollouts to export. Repeatable. [default: with a verdict for jsonl and parquet, "
    "resolved for sft, else all]",
)
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Task to export. Repeatable.")
def export(
    directories: tuple[Path, ...],
    format_: str,
    out: Path | None,
    force: bool,
    outcomes: tuple[Outcome, ...],
    tasks: tuple[str, ...],
) -> None:
    """Write the finished rollouts of each RUN into a new folder, with a data card.

    A run may still be running. Interrupted rollouts are left out. Local paths and secrets are removed.

    Exit code: 1 when files of a rollout are damaged; the others are written.
    """
    from swe_core.export.card import README
    from swe_core.export.choice import choose
    from swe_core.export.formats import format_named
    from swe_core.export.write import export as write
    from swe_core.export.write import require_free
    from swe_core.system.plural import counted
    from swe_core.system.printable import one_line

    form = format_named(format_)
    if not directories:
        raise UsageError("there is no run to export: give one, such as `latest`")
    folder = out or Path(f"{directories[0].resolve().name if len(directories) == 1 else 'runs'}-{format_}")
    require_free(folder, force)
    choice = choose(directories, format_, outcomes, tasks)
    count = choice.rollouts
    with click.progressbar(
        length=count, label="Rollouts", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        done = write(choice, folder, force, bar.update)
    interrupted = sum(run.interrupted for run in choice.runs)
    of = "" if form.unit == "rollout" else f" of {counted(count, 'rollout')}"
    click.echo(f"{folder}: {form.count(done.rows)}{of}, {_size(done.size)}; {README} says what they are")
    for reason, number in done.left_out.items():
        click.echo(f"left out: {reason.of(number)}")
    if interrupted:
        click.echo(f"left out: {interrupted:,} interrupted, which a resume runs again")
    click.echo(f"open it: {form.load.format(folder=folder).splitlines()[-1]}")
    for line in done.damaged[:_NAMED]:
        click.echo(f"damaged: {one_line(line)}", err=True)
    if done.damaged:
        raise click.exceptions.Exit(1)


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
