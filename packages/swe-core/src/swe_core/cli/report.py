"""`swe-core report`: the table of a run, from its directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import orjson
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from swe_core.record import Rollout
from swe_core.store import RunDirectory

_STYLE = {"resolved": "green", "unresolved": "yellow", "error": "red", "cancelled": "dim"}


@click.command()
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
def report(directory: Path, as_json: bool) -> None:
    """Print the table of the run in directory RUN, finished or not."""
    run = RunDirectory.open(directory)
    show(run, as_json)


def show(run: RunDirectory, as_json: bool) -> None:
    """Print the table, or the summary as JSON, of what is finished in `run`."""
    rollouts = run.rollouts()
    if as_json:
        click.echo(orjson.dumps(summary(run, rollouts), option=orjson.OPT_INDENT_2))
    else:
        Console(highlight=False).print(render(run, rollouts))


def summary(run: RunDirectory, rollouts: Sequence[Rollout]) -> dict[str, object]:
    """The run in numbers."""
    outcomes = Counter(rollout.outcome for rollout in rollouts)
    scored = outcomes["resolved"] + outcomes["unresolved"]
    return {
        "directory": str(run.path),
        "notes": list(run.info.notes),
        "planned": run.info.planned,
        "finished": len(rollouts),
        **{name: outcomes[name] for name in ("resolved", "unresolved", "error", "cancelled")},
        "errors_by_boundary": dict(Counter(r.failure.boundary for r in rollouts if r.failure)),
        "resolved_rate": round(outcomes["resolved"] / scored, 4) if scored else None,
        "turns": sum(rollout.turns for rollout in rollouts),
        "prompt_tokens": sum(rollout.usage.prompt_tokens for rollout in rollouts),
        "completion_tokens": sum(rollout.usage.completion_tokens for rollout in rollouts),
        "rollouts": [
            rollout.model_dump(
                mode="json", include={"id", "task_id", "attempt", "outcome", "reward", "failure"}
            )
            for rollout in rollouts
        ],
    }


def render(run: RunDirectory, rollouts: Sequence[Rollout]) -> RenderableType:
    """The table that ends a run, and that `swe-core report` prints again."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("rollout", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for name in ("reward", "turns", "tokens in", "out", "patch", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = sorted(rollouts, key=lambda rollout: (rollout.task_id, rollout.attempt))
    for rollout in rows:
        table.add_row(
            Text(rollout.id),
            Text(rollout.outcome, style=_STYLE[rollout.outcome]),
            "-" if rollout.reward is None else f"{rollout.reward:.0f}",
            str(rollout.turns),
            str(rollout.usage.prompt_tokens),
            str(rollout.usage.completion_tokens),
            f"{rollout.patch_bytes} B",
            f"{rollout.seconds:.1f}",
        )
    lines: list[RenderableType] = [table, Text()]
    # Sentences below the table: a column of them would leave no room for the numbers.
    lines += [
        Text.assemble((f"{rollout.id}: ", _STYLE[rollout.outcome]), _why(rollout))
        for rollout in rows
        if _why(rollout)
    ]
    lines.append(Text(_last_line(run, rollouts), style="bold"))
    lines += [Text(f"Note: {note}", style="yellow") for note in run.info.notes]
    lines.append(Text(f"Records: {run.path}"))
    return Group(*lines)


def _why(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return f"{rollout.failure.boundary}: {rollout.failure.message}"
    return rollout.grade.reason if rollout.grade else ""


def _last_line(run: RunDirectory, rollouts: Sequence[Rollout]) -> str:
    numbers = summary(run, rollouts)
    text = f"resolved {numbers['resolved']} of {numbers['finished']}"
    boundaries = numbers["errors_by_boundary"]
    if numbers["error"] and isinstance(boundaries, dict):
        text += f", errors {numbers['error']} ("
        text += ", ".join(f"{name} {count}" for name, count in boundaries.items()) + ")"
    if numbers["cancelled"]:
        text += f", cancelled {numbers['cancelled']}"
    if run.info.planned > len(rollouts):
        text += f", not started {run.info.planned - len(rollouts)}"
    return text
