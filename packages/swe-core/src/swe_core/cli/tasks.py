"""`swe-core tasks`: list, show and verify tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from swe_core.cli.options import (
    plugin_options,
    settings_and_plugins,
    settings_options,
    source_options,
    task_options,
)
from swe_core.cli.tasks_verify import verify
from swe_core.system.plural import counted
from swe_core.system.printable import one_line, printable

if TYPE_CHECKING:
    from swe_core.api.task import Task


@click.group()
def tasks() -> None:
    """List, show and verify tasks."""


tasks.add_command(verify)


@tasks.command("list")
@plugin_options
@task_options
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_tasks(config: Path | None, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """List the tasks of a run with these options, in the order of the run.

    The command reads and validates tasks and starts nothing.
    """
    selected = _selected(config, sets, options)
    if as_json:
        click.echo(orjson.dumps([_facts(task) for task in selected], option=orjson.OPT_INDENT_2))
        return
    from rich.table import Table

    from swe_core.report.text import Uncut
    from swe_core.system.safe_console import SafeConsole

    table = Table("task", "repository", "runs in", "tests", box=None, header_style="bold", pad_edge=False)
    for task in selected:
        table.add_row(task.instance_id, one_line(task.repo), one_line(_place(task)), _tests(task))
    console = SafeConsole(markup=False)
    console.print(Uncut(table), crop=False)
    console.print(f"\n{counted(len(selected), 'task')}", highlight=False)


@tasks.command("show")
@click.argument("task_id", metavar="ID")
@plugin_options
@source_options
@settings_options
@click.option("--gold", is_flag=True, help="Print the gold patch and the test patch too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_task(
    task_id: str, config: Path | None, sets: tuple[str, ...], gold: bool, as_json: bool, **options: Any
) -> None:
    """Show the task ID: statement, image, test command, tests and the size of the gold patch."""
    (task,) = _selected(config, sets, {**options, "only": (task_id,)})
    secret = {"patch", "test_patch", "bug_patch"}
    if as_json:
        fields = task.model_dump(mode="json", exclude=None if gold else secret)
        click.echo(orjson.dumps(fields | {"gold": _patch_facts(task.patch)}, option=orjson.OPT_INDENT_2))
        return
    click.echo("\n".join(_lines(task)))
    if gold:
        for name in ("patch", "test_patch"):
            click.echo(f"\n--- {name} ---\n{printable(getattr(task, name)).rstrip()}")


def _selected(config: Path | None, sets: Sequence[str], options: dict[str, Any]) -> list[Task]:
    settings, plugins = settings_and_plugins(config, sets, options)
    from swe_core.run.task_selection import selection

    return selection(settings, plugins).tasks()


def _place(task: Task) -> str:
    return task.image or str(task.repository)


def _tests(task: Task) -> str:
    if task.expected is not None:
        return f"{len(task.expected)} exactly"
    return f"{len(task.fail_to_pass)} + {len(task.pass_to_pass)}"


def _patch_facts(patch: str) -> dict[str, int]:
    lines = patch.split("\n")
    return {
        "files": sum(line.startswith("--- ") for line in lines),
        "added": sum(line.startswith("+") and not line.startswith("+++ ") for line in lines),
        "removed": sum(line.startswith("-") and not line.startswith("--- ") for line in lines),
        "bytes": len(patch.encode()),
    }


def _facts(task: Task) -> dict[str, Any]:
    return {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "base_commit": task.base_commit,
        "image": task.image,
        "repository": None if task.repository is None else str(task.repository),
        "fail_to_pass": len(task.fail_to_pass),
        "pass_to_pass": len(task.pass_to_pass),
        "expected": None if task.expected is None else len(task.expected),
        "log_parser": task.log_parser,
        "digest": task.digest,
    }


def _lines(task: Task) -> list[str]:
    gold = _patch_facts(task.patch)
    patch = (
        f"{counted(gold['files'], 'file')}, +{gold['added']} -{gold['removed']}, "
        f"{counted(gold['bytes'], 'byte')} (--gold shows it)"
        if task.patch
        else "unknown"
    )
    rows = {
        "task": task.instance_id,
        "repository": f"{task.repo} at {task.base_commit}",
        "runs in": f"{_place(task)}, {task.workdir}",
        "set-up": task.setup.replace("\n", "; "),
        "test command": task.test_command.strip().replace("\n", "; "),
        "test files": "those of the test patch" if task.test_files is None else " ".join(task.test_files),
        "log parser": task.log_parser,
        "gold patch": patch,
        "hidden": " ".join(task.hidden),
    }
    lines = [f"{name:<14}{one_line(text)}" for name, text in rows.items() if text]
    lists: dict[str, Sequence[str]] = {"must pass": task.fail_to_pass, "must still pass": task.pass_to_pass}
    if task.expected is not None:
        lists = {"must end so": [f"{test} {status}" for test, status in task.expected.items()]}
    for name, tests in lists.items():
        lines += ["", f"{len(tests)} {name}", *(f"  {one_line(test)}" for test in tests)]
    return [*lines, "", printable(task.problem_statement).rstrip()]
