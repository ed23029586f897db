"""`swe-core runs`: list runs, the newest last."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RUN_FILE, RunDirectory
from swe_core.rollout.run_list import RUNS, RunSummary, State, run_paths, summary_of
from swe_core.system.printable import one_line, printable

_STYLE: dict[State, str] = {"running": "cyan", "interrupted": "yellow", "finished": "green", "ended": ""}


@click.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runs(folder: Path | None, as_json: bool) -> None:
    """List the runs in FOLDER, the newest last. The default is ./runs.

    Other commands take the name of a run in ./runs in place of its path, and `latest` for the newest. A
    training has no planned number of rollouts, so it has ended rather than finished.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is no folder: give the folder with the run directories")
    where = folder or RUNS
    paths = [where] if (where / RUN_FILE).is_file() else run_paths(where)
    found = []
    for path in paths:
        try:
            found.append(summary_of(RunDirectory.open(path)))
        except UsageError as error:
            click.echo(f"Note: left out: {printable(str(error))}", err=True)
    if as_json:
        click.echo(orjson.dumps([_as_dict(run) for run in found], option=orjson.OPT_INDENT_2))
    elif found:
        _print(found)
    else:
        click.echo(f"There is no run in {str(where)!r}. `swe-core run` starts one.")


def _print(found: list[RunSummary]) -> None:
    from rich.table import Table
    from rich.text import Text

    from swe_core.report.text import Uncut
    from swe_core.system.safe_console import SafeConsole

    table = Table(box=None, header_style="bold", pad_edge=False)
    numbers = ("tasks", "finished", "resolved", "errors")
    for column in ("run", "started", "agent", "model", *numbers, "state"):
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    for run in found:
        table.add_row(
            Text(run.path.name or str(run.path)),
            run.started.astimezone().strftime("%Y-%m-%d %H:%M"),
            Text(one_line(run.agent) or "-"),
            Text(one_line(run.model) or "-"),
            f"{run.tasks:,}",
            f"{run.finished:,}" if run.planned is None else f"{run.finished:,} of {run.planned:,}",
            f"{run.resolved:,}",
            f"{run.errors:,}",
            Text(run.state, _STYLE[run.state]),
        )
    SafeConsole(highlight=False, markup=False).print(Uncut(table), crop=False)


def _as_dict(run: RunSummary) -> dict[str, object]:
    return {
        "name": run.path.name,
        "path": str(run.path),
        "started": run.started.isoformat(),
        "agent": run.agent,
        "model": run.model,
        "tasks": run.tasks,
        "finished": run.finished,
        "planned": run.planned,
        "resolved": run.resolved,
        "errors": run.errors,
        "state": run.state,
    }
