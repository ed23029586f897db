"""`swe-core regrade`: grade the patches of a run again and compare the verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import click

from swe_core.cli.options import run_argument, run_directory
from swe_core.system.printable import one_line


@click.command()
@run_argument
@click.argument("name", metavar="[ROLLOUT]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def regrade(directory: Path, name: str | None, as_json: bool) -> None:
    """Grade the patches of RUN again, or only that of ROLLOUT, with the run's settings.

    The command writes nothing to the run directory. It does not compare the test log, which contains times.

    Exit code: 1 when a verdict, a test status or a hash differs.
    """
    from rich.table import Table
    from rich.text import Text

    from swe_core.report.text import Uncut
    from swe_core.run.components import load_plugins
    from swe_core.run.regrade import Regraded, chosen
    from swe_core.run.regrade import regrade as grade_again
    from swe_core.run.settings import load_settings
    from swe_core.system.event_loop import run as run_in_loop
    from swe_core.system.safe_console import SafeConsole

    run = click.get_current_context().with_resource(run_directory(directory))
    rollouts = chosen(run, name)
    settings = load_settings(recorded=run.info.settings)
    plugins = load_plugins(settings.run)

    async def all_of() -> list[Regraded]:
        found = []
        async for regraded in grade_again(run, rollouts, settings, plugins):
            found.append(regraded)
            said = regraded.error or regraded.cause or "the same"
            click.echo(f"{len(found)}/{len(rollouts)} {regraded.rollout}: {one_line(said, 1000)}", err=True)
        return found

    found = run_in_loop(all_of)
    if as_json:
        click.echo(json.dumps([regraded.model_dump() for regraded in found], indent=2))
    else:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("rollout", "what", "before", "now"):
            table.add_column(column)
        for one in found:
            for difference in one.differences:
                table.add_row(*map(Text, (one.rollout, difference.what, difference.before, difference.now)))
            if one.error is not None:
                table.add_row(*map(Text, (one.rollout, "error", "", one.error)))
        if table.rows:
            SafeConsole(highlight=False).print(Uncut(table), crop=False)
        same = sum(one.same for one in found)
        click.echo(f"{same} of {len(found)} graded the same")
    if not all(one.same for one in found):
        raise click.exceptions.Exit(1)
