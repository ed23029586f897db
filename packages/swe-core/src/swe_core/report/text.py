"""The text of a run, at the end of `swe-core run` and in `swe-core report`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from swe_core.api.records import Rollout
from swe_core.report.facts import CAUSES, Facts, facts_of, why, without_evaluations
from swe_core.report.next_steps import Step, in_order, is_interrupted, next_steps
from swe_core.report.statistics import TaskResult
from swe_core.rollout.equal_errors import kind_of, reason_of
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.run_list import State
from swe_core.rollout.training_records import read_evaluations
from swe_core.system.natural_order import natural_key
from swe_core.system.plural import counted
from swe_core.system.printable import one_line

if TYPE_CHECKING:
    from swe_core.report.token_audit import TokenAudit
    from swe_core.rollout.training_account import TrainingAccount

MAX_ROWS = 40
"""Default maximum of rows of a table."""
_MAX_NOTES = 5
_MAX_FAILURES = 10
_NAMED = 3
"""Rollouts with the same error whose ids are listed, and errors of one kind; of more, the number is."""
STYLE = {"resolved": "green", "unresolved": "yellow", "error": "red", "cancelled": "dim"}
"""Outcome → style."""


def brief(
    run: RunDirectory,
    rollouts: Sequence[Rollout],
    tokens: TokenAudit | None,
    state: State,
    shown: Collection[str] = (),
    training: TrainingAccount | None = None,
) -> RenderableType:
    """Return the short text at the end of a run.

    Args:
        state: How the run has ended.
        shown: Notes that were shown at its start, and are not repeated.
        training: What became of the trainable tokens; None for an evaluation.
    """
    counting = without_evaluations(rollouts)
    facts = facts_of(counting)
    few = len(rollouts) <= MAX_ROWS
    lines = _rollouts(rollouts, tokens is not None) if few else _failures(facts)
    lines += [_last_line(run, counting, facts, state), *_warnings(facts), *_run_again(facts)]
    if len(facts.tasks) > 1 or len(counting) > 1:
        lines += [Text(_passes(facts))] if facts.passes else []
    lines += _evaluations(run)
    steps = next_steps(run, rollouts, state)
    if not few:
        steps.append(Step("by task", shlex.join(["swe-core", "report", str(run.path)])))
    return Group(*lines, *_tokens(tokens), *_training(training), *_notes(run, shown), *_next(steps))


def full(
    run: RunDirectory,
    rollouts: Sequence[Rollout],
    tokens: TokenAudit | None,
    state: State,
    limit: int | None,
    training: TrainingAccount | None = None,
) -> RenderableType:
    """Return the whole text of a run.

    Args:
        limit: Maximum of rows of a table; None is no limit.
        training: As in `brief`.
    """
    counting = without_evaluations(rollouts)
    facts = facts_of(counting)
    few = limit is None or len(rollouts) <= limit
    lines = _rollouts(rollouts, tokens is not None) if few else []
    if not few or len(counting) > len(facts.tasks):
        lines += [*([Text()] if lines else []), _tasks(facts.tasks[:limit])]
        if limit is not None and (left_out := len(facts.tasks[limit:])):
            lines.append(Text(f"… and {counted(left_out, 'more task')}: --all, or --csv FILE", style="dim"))
        lines.append(Text())
    lines.append(_last_line(run, counting, facts, state))
    if facts.passes:
        lines += [Text(), *_estimates(facts)]
    lines += _evaluations(run)
    lines += [] if few else _failures(facts)
    lines += _warnings(facts)
    lines += _run_again(facts)
    if facts.phases:
        lines += [Text(), _phases(facts), Text()]
    if facts.sandboxes:
        lines += [*([] if facts.phases else [Text()]), _sandboxes(facts), Text()]
    steps = next_steps(run, rollouts, state)
    return Group(*lines, *_tokens(tokens), *_training(training), *_notes(run), *_next(steps))


def rollout_list(run: RunDirectory, rollouts: Sequence[Rollout], unfinished: Sequence[str]) -> RenderableType:
    """Return a table of rollouts to choose from.

    Args:
        unfinished: Ids of rollouts that have begun and have no record.
    """
    table = _table("rollout", "outcome", "turns", "patch", "seconds", "why")
    table.columns[1].justify = table.columns[-1].justify = "left"
    for rollout in in_order(rollouts):
        table.add_row(
            Text(rollout.id),
            Text(rollout.outcome, style=STYLE[rollout.outcome]),
            str(rollout.turns),
            f"{rollout.patch_bytes} B",
            f"{rollout.seconds:.1f}",
            Text(one_line(why(rollout), 100)),
        )
    for name in sorted(unfinished, key=natural_key):
        table.add_row(Text(name), Text("not finished", style="dim"))
    if not table.rows:
        return Text(f"The run {str(run.path)!r} has no rollout: none has started.")
    first = next((one for one in in_order(rollouts) if one.outcome in ("unresolved", "error")), None)
    chosen = first.id if first else rollouts[0].id if rollouts else unfinished[0]
    return Group(
        Uncut(table), *_next([Step("one of them", shlex.join(["swe-core", "show", str(run.path), chosen]))])
    )


class Uncut:
    """A table at full width, also on a narrow terminal and in a pipe, so that no id is cut.

    Its lines end without spaces.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=1000)
        width = Measurement.get(console, wide, self._table).maximum
        options = options.update(max_width=max(width, options.max_width))
        for line in console.render_lines(self._table, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            yield from line
            yield Segment.line()


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rollouts(rollouts: Sequence[Rollout], with_chains: bool) -> list[RenderableType]:
    """Return a table of the rollouts, and below it their sentences, which are too long for a column."""
    if not rollouts:
        return []
    chains = ["chains"] if with_chains else []
    table = _table("rollout", "outcome", "reward", "turns", "tokens in", "out", *chains, "patch", "seconds")
    table.columns[1].justify = "left"
    rows = in_order(rollouts)
    for rollout in rows:
        table.add_row(
            Text(rollout.id),
            Text(rollout.outcome, style=STYLE[rollout.outcome]),
            "-" if rollout.reward is None else f"{rollout.reward:.4g}",
            str(rollout.turns),
            str(rollout.usage.prompt_tokens),
            str(rollout.usage.completion_tokens),
            *(str(rollout.ledger.chains) if rollout.ledger else "-" for _ in chains),
            f"{rollout.patch_bytes} B",
            f"{rollout.seconds:.1f}",
        )
    return [Uncut(table), Text(), *_reasons(rows)]


def _reasons(rollouts: Sequence[Rollout]) -> list[RenderableType]:
    """Return a sentence for each rollout that has one, and one for all that ended in the same error.

    Many errors of one kind, such as the missing image of each task, have one sentence too.
    """
    kinds: dict[object, dict[object, list[Rollout]]] = {}
    for rollout in rollouts:
        failure, kind, reason = rollout.failure, cast(object, rollout.id), cast(object, rollout.id)
        if failure is not None and why(rollout) == f"{failure.boundary}: {failure.message}":
            reason = equal = reason_of(failure, rollout.id, rollout.task_id)
            kind = kind_of(equal)
        kinds.setdefault(kind, {}).setdefault(reason, []).append(rollout)
    lines: list[RenderableType] = []
    for reasons in kinds.values():
        several = len(reasons) > _NAMED
        for group in [list(chain(*reasons.values()))] if several else reasons.values():
            text, ids = why(group[0]), ", ".join(rollout.id for rollout in group[:_NAMED])
            who = ids if len(group) <= _NAMED else f"{len(group):,} rollouts, such as {group[0].id}"
            if text:
                lines.append(Text.assemble((f"{who}: ", STYLE[group[0].outcome]), one_line(text, 1000)))
    return lines


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


def _next(steps: Sequence[Step]) -> list[RenderableType]:
    """Return commands to copy, which are not wrapped."""
    width = max((len(step.purpose) for step in steps), default=0) + 1
    lines = [f"  {f'{step.purpose}:':<{width}}  {one_line(step.command, 10_000)}" for step in steps]
    return [Text("Next:"), *(Text(line, no_wrap=True, overflow="ignore") for line in lines)]


def _last_line(run: RunDirectory, rollouts: Sequence[Rollout], facts: Facts, state: State) -> RenderableType:
    finished = facts.finished - sum(map(is_interrupted, rollouts))
    text = f"resolved {facts.outcomes['resolved']} of {finished}"
    if state in ("interrupted", "running"):
        planned = "" if run.info.planned is None else f" of {run.info.planned}"
        text = f"{state}, {finished}{planned} finished: {text}"
    if facts.outcomes["error"]:
        text += f", errors {facts.outcomes['error']} ("
        text += ", ".join(f"{name} {count}" for name, count in facts.errors.items())
        if facts.errors_after_answer:
            text += f"; the policy may have caused {facts.errors_after_answer}"
        text += ")"
    if facts.outcomes["cancelled"]:
        text += f", cancelled {facts.outcomes['cancelled']}"
    if run.info.planned is not None and run.info.planned > facts.finished and state != "running":
        text += f", not started {run.info.planned - facts.finished}"
    return Text(text, style="bold")


def _passes(facts: Facts) -> str:
    """Return pass@1 and the highest pass@k with what they are computed from, on one line."""
    shown = dict.fromkeys((facts.passes[0], facts.passes[-1]))
    passes = [
        f"pass@{one.k} {one.value:.1%} ({one.low:.1%} to {one.high:.1%}; "
        f"n = {counted(one.verdicts, 'verdict')} on {counted(one.tasks, 'task')})"
        for one in shown
    ]
    return f"{', '.join(passes)}: the mean over tasks, with its 95 % interval"


def _estimates(facts: Facts) -> list[RenderableType]:
    table = _table("pass@k", "estimate", "95 % interval", "tasks", "verdicts")
    for one in facts.passes:
        table.add_row(
            f"pass@{one.k}",
            f"{one.value:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            f"{one.tasks:,}",
            f"{one.verdicts:,}",
        )
    unscored = facts.outcomes["error"] + facts.outcomes["cancelled"]
    lines: list[RenderableType] = [Uncut(table)]
    if unscored:
        lines.append(Text(f"pass@k excludes errors and cancelled rollouts ({unscored:,})."))
    if silent := sum(not task.verdicts for task in facts.tasks):
        lines.append(Text(f"{counted(silent, 'task has', 'tasks have')} no verdict."))
    return lines


def _evaluations(run: RunDirectory) -> list[RenderableType]:
    """Return a table of the evaluations of a training."""
    found = read_evaluations(run.path)
    if not found:
        return []
    table = _table("evaluation at step", "policy versions", "resolved", "of", "rate", "errors", "mean reward")
    for one in found:
        versions = dict.fromkeys(version for version in (one.oldest, one.newest) if version is not None)
        table.add_row(
            f"{one.step:,}",
            " to ".join(map(str, versions)) or "-",
            f"{one.resolved:,}",
            f"{one.verdicts:,}",
            "-" if one.resolved_rate is None else f"{one.resolved_rate:.1%}",
            f"{one.errors:,}",
            "-" if one.reward is None else f"{one.reward:.3g}",
        )
    return [Text(), Uncut(table), Text()]


def _failures(facts: Facts) -> list[RenderableType]:
    """Return the most frequent errors by boundary and type, each with the message of the first."""
    lines = [
        Text(f"{one.count:,} x {one.boundary}, {one.type}: {one_line(one.example)}", style="red")
        for one in facts.failures[:_MAX_FAILURES]
    ]
    if left_out := len(facts.failures[_MAX_FAILURES:]):
        lines.append(Text(f"… and {counted(left_out, 'more type', 'more types')} of errors", style="dim"))
    return list(lines)


def _tampering(facts: Facts) -> list[RenderableType]:
    found = facts.tampering
    if not found.rollouts:
        return []
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items())
    return [Text(f"Tampering in {counted(found.rollouts, 'rollout')}: {kinds}", "yellow")]


def _suspicious(facts: Facts) -> list[RenderableType]:
    found = facts.suspicious
    if not found.rollouts:
        return []
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.items())
    patches = counted(found.rollouts, "patch", "patches")
    return [Text(f"Suspicious code in {patches}, {found.resolved:,} of them resolved: {kinds}", "yellow")]


def _warnings(facts: Facts) -> list[RenderableType]:
    unchecked = (Text(sentence, "yellow") for sentence in facts.unchecked)
    notes = [Text(one_line(note), "yellow") for note in facts.notes[:_MAX_NOTES]]
    if left_out := len(facts.notes[_MAX_NOTES:]):
        notes.append(Text(f"… and {counted(left_out, 'more note')} (swe-core show)", "dim"))
    return [*_tampering(facts), *_suspicious(facts), *unchecked, *notes]


def _run_again(facts: Facts) -> list[RenderableType]:
    lost = facts.retried
    if not lost.tries:
        return []
    text = (
        f"Run again after the sandbox failed: {counted(lost.rollouts, 'rollout')}; the "
        f"{counted(lost.tries, 'lost try', 'lost tries')} took {lost.seconds:,.1f} s and "
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
            f"Tokens: {tokens.sampled:,} sampled {equals} {ledger.trainable:,} trainable + {dropped:,} "
            f"dropped{f' ({reasons})' if reasons else ''}; {proof}, {tokens.accounted:.1f} % accounted for",
            style="bold red" if tokens.problems else "",
        ),
        *(Text(f"  {problem}", style="bold red") for problem in tokens.problems),
        *(
            [Text(f"Summaries at compactions: {ledger.summaries:,} of the trained tokens")]
            if ledger.summaries
            else []
        ),
        Text(f"Chains: {ledger.chains:,}, of which {counted(forks, 'fork')}"),
        *(Text(f"  {count:,} {cause}: {CAUSES[cause]}") for cause, count in ledger.forks.items()),
        Text("Prompts: " + ", ".join(f"{count:,} {how}" for how, count in ledger.rendered.items())),
    ]
    return list(lines)


def _training(account: TrainingAccount | None) -> list[RenderableType]:
    if account is None:
        return []
    return [Text(f"Training: {account.sentence()}", style="bold red" if account.unaccounted else "")]


def _notes(run: RunDirectory, shown: Collection[str] = ()) -> list[RenderableType]:
    left = (note for note in run.info.notes if note not in shown)
    notes: list[RenderableType] = [Text(f"Note: {note}", style="yellow") for note in left]
    return [*notes, Text(f"Records: {run.path}")]
