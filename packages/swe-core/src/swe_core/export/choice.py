"""What is exported: runs, a format, and which of their rollouts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_core.api.records import Outcome
from swe_core.errors import UsageError
from swe_core.export.formats import FORMATS, format_named
from swe_core.export.source import ExportedRun, open_run


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs of an export, with their chosen rollouts.

    Args:
        format: Name of the format.
        outcomes: Outcomes of the rollouts; None is all.
        tasks: Ids of their tasks; none is all.
    """

    format: str
    runs: Sequence[ExportedRun]
    outcomes: Collection[Outcome] | None
    tasks: Collection[str]

    @property
    def rollouts(self) -> int:
        """Return the number of chosen rollouts."""
        return sum(len(run.heads) for run in self.runs)


def choose(
    paths: Sequence[Path], name: str, outcomes: Collection[Outcome] = (), tasks: Collection[str] = ()
) -> Choice:
    """Choose rollouts of the runs at `paths`.

    Args:
        name: Name of the format.
        outcomes: Outcomes of the rollouts; none takes those that the format has by default.
        tasks: Ids of their tasks; none takes all.

    Raises:
        UsageError: There is no such format, run or task, or nothing to export.
    """
    form = format_named(name)
    wanted = outcomes or form.outcomes
    runs = [open_run(path, wanted, tasks) for path in paths]
    named = " and ".join(repr(str(path)) for path in paths)
    if twice := [run.path for run in runs if sum(run.name == one.name for one in runs) > 1]:
        raise UsageError(f"the run {str(twice[0])!r} is given twice; give each run once")
    if not any(run.finished for run in runs):
        raise UsageError(f"{named} has no finished rollout yet, so there is nothing to export")
    _require_known(tasks, {task for run in runs for task in run.tasks})
    choice = Choice(name, runs, wanted, tasks)
    if not choice.rollouts:
        which = " or ".join(wanted or ())
        raise UsageError(
            f"no finished rollout of {named}{' with these tasks' if tasks else ''} is {which}: choose others "
            "with --outcome"
            if which
            else f"no task of {named} has a finished rollout: choose others with --task"
        )
    if form.tokens and not any(head.owned for run in runs for head in run.heads):
        others = ", ".join(other for other, one in FORMATS.items() if not one.tokens)
        raise UsageError(
            f"{named} has no training rows, because its engine does not own the tokens: choose another "
            f"--format ({others})"
        )
    return choice


def _require_known(tasks: Collection[str], known: Collection[str]) -> None:
    for task in tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`swe-core show RUN` lists the rollouts"
            raise UsageError(f"no finished rollout is of the task {task!r}; {hint}")
