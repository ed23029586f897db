"""`swe-core show`: print one rollout, finished or not."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click

from swe_core.api.records import Rollout
from swe_core.errors import UsageError
from swe_core.report.rollout_text import PARTS, Part, Shown
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.system.safe_console import SafeConsole

_NAMED = 5
"""Rollouts that the error lists where no name is similar."""


@click.command()
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("name", metavar="ROLLOUT")
@click.option("--transcript", "transcript", is_flag=True, help="Print the agent's messages and actions.")
@click.option("--diff", "diff", is_flag=True, help="Print the patch.")
@click.option("--tests", "tests", is_flag=True, help="Print the tests that decide the verdict.")
@click.option("--turns", "turns", is_flag=True, help="Print the LLM calls, one line each.")
@click.option("--full", is_flag=True, help="Print long texts in full, and passed tests too.")
def show(
    directory: Path, name: str, transcript: bool, diff: bool, tests: bool, turns: bool, full: bool
) -> None:
    """Print ROLLOUT of the run in directory RUN: transcript, patch and tests, finished or not.

    A terminal shows the output in your pager. The options select parts and combine; the default is all parts
    except the LLM calls. Control characters are removed.
    """
    run = RunDirectory.open(directory)
    rollout = _find(run, name)
    parts: dict[Part, bool] = {"transcript": transcript, "diff": diff, "tests": tests, "turns": turns}
    chosen = [part for part, wanted in parts.items() if wanted]
    console = SafeConsole(highlight=False)
    shown = Shown(run, name, rollout, full)
    with console.capture() as captured:
        for part in chosen or PARTS:
            console.print(shown.part(part), soft_wrap=True)
    if console.is_terminal:
        os.environ.setdefault("LESS", "FRX")  # git's default: colours, and no pager for a single screen
        click.echo_via_pager(captured.get().rstrip("\n"), color=True)
    else:
        click.echo(captured.get(), nl=False)


def _find(run: RunDirectory, name: str) -> Rollout | None:
    """Return the finished rollout `name`; None where it has started and is not finished.

    Raises:
        UsageError: No such rollout has started.
    """
    finished = {rollout.id: rollout for rollout in run.rollouts()}
    if name in finished:
        return finished[name]
    folders = run.path / FOLDERS
    begun = {folder.name for folder in folders.iterdir()} if folders.is_dir() else set()
    if name in begun:
        return None
    known = sorted(begun | finished.keys())
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif known:
        more = f", … ({len(known):,} in all)" if len(known) > _NAMED else ""
        hint = f"there are: {', '.join(known[:_NAMED])}{more}"
    else:
        hint = "none has started"
    raise UsageError(f"the run {str(run.path)!r} has no rollout {name!r}; {hint}")
