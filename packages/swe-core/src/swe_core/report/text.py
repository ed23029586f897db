"""The text of a run, at the end of `swe-core run` and in `swe-core report`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from swe_core.api.records import Rollout
from swe_core.report.facts import CAUSES, Facts, facts_of, why
from swe_core.report.statistics import TaskResult
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.printable import one_line

if TYPE_CHECKING:
    from swe_core.report.token_audit import TokenAudit

MAX_ROWS = 40
"""Default maximum of rows of a table."""
_MAX_FAILURES = 10
STYLE = {"resolved": "green", "unresolved": "yellow", "error": "red", "cancelled": "dim"}
"""Outcome → style."""


def brief(
    run: RunDirectory, rollouts: Sequence[Rollout], tokens: TokenAudit | None, shown: Collection[str] = ()
) -> RenderableType:
    """Return the short text at the end of a run.

    Args:
        shown: Notes that were shown at its start, and are not repeated.
    """
    facts = facts_of(rollouts)
    few = len(rollouts) <= MAX_ROWS
    lines = _rollouts(rollouts, tokens is not None) if few else _failures(facts)
    lines += [_last_line(run, facts), *_warnings(facts), *_run_again(facts)]
    if len(facts.tasks) > 1 or len(rollouts) > 1:
        lines += [Text(_passes(facts))] if facts.passes else []
    lines += [*_tokens(tokens), *_notes(run, shown)]
    if not few:
        lines.append(Text("By task: `swe-core report` of these records"))
    return Group(*lines)


def full(
    run: RunDirectory, rollouts: Sequence[Rollout], tokens: TokenAudit | None, limit: int | None
) -> RenderableType:
    """Return the whole text of a run.

    Args:
        limit: Maximum of rows of a table; None is no limit.
    """
    facts = facts_of(rollouts)
    few = limit is None or len(rollouts) <= limit
    lines = _rollouts(rollouts, tokens is not None) if few else []
    if not few or len(rollouts) > len(facts.tasks):
        lines += [*([Text()] if lines else []), _tasks(facts.tasks[:limit])]
        if limit is not None and (left_out := len(facts.tasks[limit:])):
            lines.append(Text(f"… and {left_out:,} more tasks: --all, or --csv FILE", style="dim"))
        lines.append(Text())
    lines.append(_last_line(run, facts))
    if facts.passes:
        lines += [Text(), *_estimates(facts)]
    lines += [] if few else _failures(facts)
    lines += _warnings(facts)
    lines += _run_again(facts)
    if facts.phases:
        lines += [Text(), _phases(facts), Text()]
    if facts.sandboxes:
        lines += [*([] if facts.phases else [Text()]), _sandboxes(facts), Text()]
    return Group(*lines, *_tokens(tokens), *_notes(run))


class Uncut:
    """A table at full width, also on a narrow terminal and in a pipe, so that no id is cut."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=1000)
        width = Measurement.get(console, wide, self._table).maximum
        yield from console.render(self._table, options.update(max_width=max(width, options.max_width)))


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rollouts(rollouts: Sequence[Rollout], with_chains: bool) -> list[RenderableType]:
    """Return a table of the rollouts, and below it their sentences, which are too long for a column."""
    chains = ["chains"] if with_chains else []
    table = _table("rollout", "outcome", "reward", "turns", "tokens in", "out", *chains, "patch", "seconds")
    table.columns[1].justify = "left"
    rows = sorted(rollouts, key=lambda rollout: (rollout.task_id, rollout.attempt))
    for rollout in rows:
        table.add_row(
            Text(rollout.id),
            Text(rollout.outcome, style=STYLE[rollout.outcome]),
            "-" if rollout.reward is None else f"{rollout.reward:.0f}",
            str(rollout.turns),
            str(rollout.usage.prompt_tokens),
            str(rollout.usage.completion_tokens),
            *(str(rollout.ledger.chains) if rollout.ledger else "-" for _ in chains),
            f"{rollout.patch_bytes} B",
            f"{rollout.seconds:.1f}",
        )
    reasons = [(rollout, why(rollout)) for rollout in rows]
    sentences = [
        Text.assemble((f"{rollout.id}: ", STYLE[rollout.outcome]), one_line(text, 1000))
        for rollout, text in reasons
        if text
    ]
    return [Uncut(table), Text(), *sentences]


def _tasks(tasks: Sequence[TaskResult]) -> RenderableType:
    table = _table("task", "attempts", "resolved", "errors", "cancelled", "mean seconds")
    for task in tasks:
        style = "green" if task.resolved else "red" if not task.verdicts else ""
        table.add_row(
            Text(task.task_id, style=style),
            *(str(count) for count in (task.attempts, task.resolved, task.errors, task.cancelled)),
            f"{task.seconds:.1f}",
        )
    return Uncut(table)


def _last_line(run: RunDirectory, facts: Facts) -> RenderableType:
    text = f"resolved {facts.outcomes['resolved']} of {facts.finished}"
    if facts.outcomes["error"]:
        text += f", errors {facts.outcomes['error']} ("
        text += ", ".join(f"{name} {count}" for name, count in facts.errors.items()) + ")"
    if facts.outcomes["cancelled"]:
        text += f", cancelled {facts.outcomes['cancelled']}"
    if run.info.planned is not None and run.info.planned > facts.finished:
        text += f", not started {run.info.planned - facts.finished}"
    return Text(text, style="bold")


def _passes(facts: Facts) -> str:
    """Return pass@1 and the highest pass@k, on one line."""
    shown = dict.fromkeys((facts.passes[0], facts.passes[-1]))
    passes = [f"pass@{one.k} {one.value:.1%} ({one.low:.1%} to {one.high:.1%})" for one in shown]
    return f"{', '.join(passes)}: the mean over tasks, with its 95 % interval"


def _estimates(facts: Facts) -> list[RenderableType]:
    table = _table("pass@k", "estimate", "95 % interval", "tasks")
    for one in facts.passes:
        table.add_row(
            f"pass@{one.k}", f"{one.value:.1%}", f"{one.low:.1%} to {one.high:.1%}", f"{one.tasks:,}"
        )
    unscored = facts.outcomes["error"] + facts.outcomes["cancelled"]
    lines: list[RenderableType] = [Uncut(table)]
    if unscored:
        lines.append(Text(f"pass@k excludes errors and cancelled rollouts ({unscored:,})."))
    if silent := sum(not task.verdicts for task in facts.tasks):
        lines.append(Text(f"{silent:,} task{'s have' if silent > 1 else ' has'} no verdict."))
    return lines


def _failures(facts: Facts) -> list[RenderableType]:
    """Return the most frequent errors by boundary and type, each with the message of the first."""
    lines = [
        Text(f"{one.count:,} x {one.boundary}, {one.type}: {one_line(one.example)}", style="red")
        for one in facts.failures[:_MAX_FAILURES]
    ]
    if left_out := len(facts.failures[_MAX_FAILURES:]):
        lines.append(Text(f"… and {left_out:,} more types of errors", style="dim"))
    return list(lines)


def _tampering(facts: Facts) -> list[RenderableType]:
    found = facts.tampering
    if not found.rollouts:
        return []
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items())
    return [Text(f"Tampering in {found.rollouts:,} rollout{'s' * (found.rollouts > 1)}: {kinds}", "yellow")]


def _suspicious(facts: Facts) -> list[RenderableType]:
    found = facts.suspicious
    if not found.rollouts:
        return []
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items())
    patches = f"{found.rollouts:,} patch{'es' * (found.rollouts > 1)}"
    return [Text(f"Suspicious code in {patches}, {found.resolved:,} of them resolved: {kinds}", "yellow")]


def _warnings(facts: Facts) -> list[RenderableType]:
    unchecked = (Text(sentence, "yellow") for sentence in facts.unchecked)
    return [*_tampering(facts), *_suspicious(facts), *unchecked]


def _run_again(facts: Facts) -> list[RenderableType]:
    lost = facts.retried
    if not lost.tries:
        return []
    text = (
        f"Run again after the sandbox failed: {lost.rollouts:,} rollout{'s' * (lost.rollouts > 1)}; the "
        f"{lost.tries:,} lost {'try' if lost.tries == 1 else 'tries'} took {lost.seconds:,.1f} s and "
        f"{lost.prompt_tokens:,} tokens in, {lost.completion_tokens:,} out"
    )
    return [Text(text, "yellow")]


def _sandboxes(facts: Facts) -> RenderableType:
    table = _table("sandbox", "flavor", "opened", "total s", "hours")
    table.columns[1].justify = "left"
    for used in facts.sandboxes:
        hours = f"{used.seconds / 3600:,.2f}"
        flavor = one_line(used.flavor or "-")
        table.add_row(Text(used.provider), Text(flavor), f"{used.sandboxes:,}", f"{used.seconds:,.1f}", hours)
    return Uncut(table)


def _phases(facts: Facts) -> RenderableType:
    table = _table("phase", "rollouts", "median s", "p90 s", "total s")
    for name, spread in facts.phases.items():
        numbers = (spread.median, spread.p90, spread.total)
        table.add_row(name, f"{spread.count:,}", *(f"{seconds:,.1f}" for seconds in numbers))
    return Uncut(table)


def _tokens(tokens: TokenAudit | None) -> list[RenderableType]:
    """Return where the sampled tokens went, and why chains began."""
    if tokens is None:
        return []
    ledger = tokens.ledger
    dropped, forks = sum(ledger.dropped.values()), sum(ledger.forks.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in ledger.dropped.items())
    proof, equals = ("NOT BALANCED", "≠") if tokens.problems else ("balanced", "=")
    lines = [
        Text(
            f"Tokens: {tokens.sampled:,} sampled {equals} {ledger.trained:,} trained + {dropped:,} dropped"
            f"{f' ({reasons})' if reasons else ''}; {proof}, {tokens.accounted:.1f} % accounted for",
            style="bold red" if tokens.problems else "",
        ),
        *(Text(f"  {problem}", style="bold red") for problem in tokens.problems),
        Text(f"Chains: {ledger.chains:,}, of which {forks:,} fork{'s' * (forks != 1)}"),
        *(Text(f"  {count:,} {cause}: {CAUSES[cause]}") for cause, count in ledger.forks.items()),
        Text("Prompts: " + ", ".join(f"{count:,} {how}" for how, count in ledger.rendered.items())),
    ]
    return list(lines)


def _notes(run: RunDirectory, shown: Collection[str] = ()) -> list[RenderableType]:
    left = (note for note in run.info.notes if note not in shown)
    notes: list[RenderableType] = [Text(f"Note: {note}", style="yellow") for note in left]
    return [*notes, Text(f"Records: {run.path}")]
