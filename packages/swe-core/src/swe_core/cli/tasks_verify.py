"""`swe-core tasks verify`: check tasks before training on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swe_core.cli.options import plugin_options, settings_and_plugins, settings_options, task_options
from swe_core.errors import SweError
from swe_core.system.plural import counted
from swe_core.system.printable import one_line, printable

if TYPE_CHECKING:
    from swe_core.run.verify.report import TaskVerdict


@click.command()
@plugin_options
@task_options
@click.option("--sandbox", metavar="NAME", help="Sandbox provider. [default: local]")
@click.option("--grader", metavar="NAME", help="Grader to verify with. [default: swe]")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Sandboxes that are open at the same time. [default: 4]",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Grades of the gold patch and of an unrelated change; more find flaky tests. [default: 1]",
)
@click.option(
    "--cheats",
    default="all",
    metavar="all|none|A,B",
    help="Cheats to try. [default: all]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Report to append verdicts to, for --verified.",
)
@click.option("--no-cache", is_flag=True, help="Ignore cached verdicts.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@settings_options
def verify(
    config: Path | None,
    sets: tuple[str, ...],
    repeat: int,
    cheats: str,
    out: Path | None,
    no_cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Verify tasks before you train on them.

    The gold patch must resolve each task. An empty patch, an unrelated patch and known cheats must not.

    Exit code: 1 when a task is not usable. An interrupted command keeps its finished verdicts.
    """
    settings, plugins = settings_and_plugins(config, sets, options)
    # Heavy modules, imported after the input is checked.
    import platformdirs

    from swe_core.run.task_selection import selection
    from swe_core.run.verify.cache import VerifyCache
    from swe_core.run.verify.cheats import chosen
    from swe_core.run.verify.report import ReportFile, VerifyReport
    from swe_core.run.verify.verify import methods_of, verify_until_signalled
    from swe_core.system.event_loop import run

    methods = methods_of(settings, plugins, chosen(cheats), repeat)
    tasks = selection(settings, plugins).tasks()
    report = None if out is None else ReportFile(out)
    cache = None if no_cache else VerifyCache(platformdirs.user_cache_path("swe-core") / "verified")
    found: dict[str, TaskVerdict] = {}
    count = f"{counted(len(tasks), 'task')}, {counted(len(methods.cheats), 'cheat')} each"
    click.echo(f"{count}; sandbox {methods.sandbox}", err=True)
    for note in methods.provider.notes():
        click.echo(f"Note: {printable(note)}", err=True)

    def done(verdict: TaskVerdict, known: bool) -> None:
        found[verdict.task_id] = verdict
        if report is not None:
            try:
                report.append(verdict)
            except OSError as error:
                raise SweError(
                    f"cannot write the report {str(out)!r}: {error.strerror}; finished verdicts are kept"
                ) from error
        took = "cached" if known else f"{verdict.seconds:.1f} s"
        task = one_line(verdict.task_id)
        click.echo(f"{len(found)}/{len(tasks)} {task}: {verdict.verdict} ({took})", err=True)

    interrupted = run(verify_until_signalled, tasks, methods, settings.run.concurrency, cache, done)
    ordered = [found[task.instance_id] for task in tasks if task.instance_id in found]
    result = VerifyReport(tasks=tuple(ordered))
    if as_json:
        click.echo(result.model_dump_json(indent=2))
    else:
        _show(result, len(tasks), out)
    if interrupted:
        raise click.exceptions.Exit(130)
    if any(verdict.verdict != "usable" for verdict in ordered):
        raise click.exceptions.Exit(1)


_STYLE = {"usable": "green", "cheatable": "red", "error": "red"}


def _show(report: Any, asked: int, out: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from swe_core.report.facts import unchecked_bases
    from swe_core.system.safe_console import SafeConsole

    console = SafeConsole(highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("gold", "no fix", "cheats", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in report.tasks:
        gold, nothing, cheats = task.tally()
        table.add_row(
            Text(task.task_id),
            Text(task.verdict, style=_STYLE.get(task.verdict, "yellow")),
            *(f"{paid}/{tried}" if tried else "-" for paid, tried in (gold, nothing, cheats)),
            f"{task.seconds:.1f}",
        )
    console.print(table, crop=False)
    console.print()
    for task in report.tasks:
        if task.reason:
            style = _STYLE.get(task.verdict, "yellow")
            console.print(Text.assemble((f"{task.task_id}: ", style), task.reason), soft_wrap=True)
    for sentence in unchecked_bases((task.task_id, task.unchecked) for task in report.tasks):
        console.print(Text(sentence, "yellow"), soft_wrap=True)
    counts = ", ".join(f"{name} {count}" for name, count in report.counts().items())
    left = asked - len(report.tasks)
    console.print(Text(f"{counts or 'nothing finished'}{f', not finished {left}' if left else ''}", "bold"))
    if out is not None:
        console.print(f"Report: {out}", markup=False, soft_wrap=True)
