"""`swe-core show`: list the rollouts of a run, or print one, finished or not."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click
from rich.console import RenderableType

from swe_core.api.records import Rollout
from swe_core.cli.options import run_argument
from swe_core.errors import UsageError
from swe_core.report.rollout_text import PARTS, Part, Shown
from swe_core.report.text import rollout_list
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.system.natural_order import natural_key
from swe_core.system.safe_console import SafeConsole

_NAMED = 5
"""Rollouts that the error lists where no name is similar."""


@click.command()
@run_argument
@click.argument("name", metavar="[ROLLOUT]", required=False)
@click.option("--transcript", "transcript", is_flag=True, help="Print the agent's messages and actions.")
@click.option("--diff", "diff", is_flag=True, help="Print the patch.")
@click.option("--tests", "tests", is_flag=True, help="Print the tests that decide, and what failed.")
@click.option("--turns", "turns", is_flag=True, help="Print the LLM calls, one line each.")
@click.option("--full", is_flag=True, help="Print long texts in full, and passed tests too.")
def show(
    directory: Path, name: str | None, transcript: bool, diff: bool, tests: bool, turns: bool, full: bool
) -> None:
    """Print ROLLOUT of RUN: transcript, patch and tests, finished or not. Without ROLLOUT, list the rollouts.

    A terminal shows the output in your pager. The options select parts and combine; the default is all parts
    except the LLM calls. Control characters are removed.
    """
    run = RunDirectory.open(directory)
    parts: dict[Part, bool] = {"transcript": transcript, "diff": diff, "tests": tests, "turns": turns}
    chosen = [part for part, wanted in parts.items() if wanted]
    if name is None:
        if chosen or full:
            option = f"--{chosen[0] if chosen else 'full'}"
            raise UsageError(f"{option} needs a rollout: `swe-core show {directory}` lists them")
        rollouts = run.rollouts()
        unfinished = _begun(run) - {rollout.id for rollout in rollouts}
        _page([rollout_list(run, rollouts, list(unfinished))])
        return
    shown = Shown(run, name, _find(run, name), full)
    _page([shown.part(part) for part in chosen or PARTS])


def _page(parts: list[RenderableType]) -> None:
    """Print `parts`, in the pager on a terminal."""
    console = SafeConsole(highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=True)
    if console.is_terminal:
        os.environ.setdefault("LESS", "FRX")  # git's default: colours, and no pager for a single screen
        click.echo_via_pager(captured.get().rstrip("\n"), color=True)
    else:
        click.echo(captured.get(), nl=False)


def _begun(run: RunDirectory) -> set[str]:
    """Return the ids of the rollouts that have a folder."""
    folders = run.path / FOLDERS
    return {folder.name for folder in folders.iterdir()} if folders.is_dir() else set()


def _find(run: RunDirectory, name: str) -> Rollout | None:
    """Return the finished rollout `name`; None where it has started and is not finished.

    Raises:
        UsageError: No such rollout has started.
    """
    finished = {rollout.id: rollout for rollout in run.rollouts()}
    if name in finished:
        return finished[name]
    begun = _begun(run)
    if name in begun:
        return None
    known = sorted(begun | finished.keys(), key=natural_key)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif known:
        more = f", … ({len(known):,} in all)" if len(known) > _NAMED else ""
        hint = f"there are: {', '.join(known[:_NAMED])}{more}"
    else:
        hint = "none has started"
    raise UsageError(f"the run {str(run.path)!r} has no rollout {name!r}; {hint}")
