"""`swe-core report`: print a run as text or JSON, or write it as CSV or HTML."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson
from rich.console import RenderableType

from swe_core.api.records import Rollout
from swe_core.cli.options import run_argument
from swe_core.errors import UsageError
from swe_core.report.summary import summary, table
from swe_core.report.text import MAX_ROWS, brief, full
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.run_list import State, state_of
from swe_core.system.files import write_out
from swe_core.system.safe_console import SafeConsole

if TYPE_CHECKING:
    from swe_core.report.token_audit import TokenAudit
    from swe_core.rollout.training_account import TrainingAccount


@click.command()
@run_argument
@click.option("--all", "every", is_flag=True, help="Print every rollout and task.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--csv",
    "sheet",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a CSV file with one row per rollout.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a self-contained HTML page with curves.",
)
def report(directory: Path, every: bool, as_json: bool, sheet: Path | None, page: Path | None) -> None:
    """Print the results of RUN, finished or not. RUN is a run directory, its name in ./runs, or latest.

    pass@k is the unbiased estimate of Chen et al. (2021), with a 95 % interval. It excludes errors and
    cancelled rollouts.

    Exit code: 1 when the records do not account for every sampled token.
    """
    if every and (as_json or sheet or page):
        raise UsageError("--all is for the printed tables, and other formats have all rollouts: leave it out")
    run = RunDirectory.open(directory)
    rollouts = run.rollouts()
    tokens = _audit(run, rollouts)
    training = _training(run, rollouts)
    unbalanced = "; its tokens are NOT BALANCED" if tokens and tokens.problems else ""
    said = []
    if page is not None:
        from swe_core.view.summary_page import write_page

        write_page(page, run, tokens, training)
        said.append(f"Page: {page}{unbalanced}")
    if sheet is not None:
        write_out(sheet, table(rollouts).encode(errors="replace"), "the table", "--csv")
        said.append(f"Table: {sheet}{unbalanced}")
    if said:
        click.echo("\n".join(said), err=as_json)
    if as_json:
        _print_json(summary(run, rollouts, tokens, training))
    elif not said:
        limit = None if every else MAX_ROWS
        _print(full(run, rollouts, tokens, state_of(run), limit, training))
    if unbalanced:
        raise click.exceptions.Exit(1)


def show(run: RunDirectory, as_json: bool, state: State | None = None, said: Collection[str] = ()) -> bool:
    """Print the results of a run: its table and the next commands, or the summary as JSON.

    Args:
        state: How the run has just ended; None where the run directory says it.
        said: Notes that the user has already seen. The table leaves them out.

    Returns:
        Whether every sampled token is accounted for; True where the engine records no tokens.
    """
    rollouts = run.rollouts()
    tokens, training = _audit(run, rollouts), _training(run, rollouts)
    if as_json:
        _print_json(summary(run, rollouts, tokens, training))
    else:
        _print(brief(run, rollouts, tokens, state or state_of(run), said, training))
    return tokens is None or not tokens.problems


def _audit(run: RunDirectory, rollouts: Sequence[Rollout]) -> TokenAudit | None:
    """Audit the token ledgers; return None where the engine records no tokens."""
    if not any(rollout.ledger for rollout in rollouts):
        return None
    from swe_core.report.token_audit import audit  # imports numpy, so only where there are tokens

    return audit(run, rollouts)


def _training(run: RunDirectory, rollouts: Sequence[Rollout]) -> TrainingAccount | None:
    """Return what became of the trainable tokens; None for an evaluation."""
    from swe_core.rollout.training_account import training_account

    return training_account(run.path, [rollout.ledger for rollout in rollouts if rollout.ledger is not None])


def _print(text: RenderableType) -> None:
    SafeConsole(highlight=False).print(text, crop=False)


def _print_json(found: dict[str, object]) -> None:
    click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
