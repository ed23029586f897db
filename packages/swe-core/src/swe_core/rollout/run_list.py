"""Runs below a folder: which there are, how far each is, and which one a user means."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import orjson

from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RUN_FILE, RunDirectory
from swe_core.system.files import is_locked

RUNS = Path("runs")
"""Folder of the runs whose directory nobody named."""
LATEST = "latest"
"""The name of the last run."""
State = Literal["running", "interrupted", "finished", "ended"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of a list.

    Args:
        agent: Name of the agent; empty where no rollout has finished and the settings name none.
        model: Name of the model, in the same way.
        tasks: Number of its tasks.
        finished: Rollouts that a resumed run does not run again.
        planned: Rollouts of the whole run; None where it was unknown at the start, as in a training.
        state: `running` while a process holds the run; then `finished` if no rollout is left, else
            `interrupted`; `ended` where `planned` is None.
    """

    path: Path
    started: datetime
    agent: str
    model: str
    tasks: int
    finished: int
    planned: int | None
    resolved: int
    errors: int
    state: State


def summary_of(run: RunDirectory) -> RunSummary:
    """Return the line of one run in a list. Evaluations of a training do not count.

    Raises:
        UsageError: A line of its rollouts is damaged.
    """
    heads = [head for head in run.heads() if head.evaluation is None]
    finished = sum(not head.interrupted for head in heads)
    options = run.info.settings.get("run", {})
    planned = run.info.planned
    return RunSummary(
        path=run.path,
        started=run.info.created_at,
        agent=heads[0].agent if heads else options.get("agent") or "",
        model=heads[0].model if heads else options.get("model") or "",
        tasks=len(run.info.tasks),
        finished=finished,
        planned=planned,
        resolved=sum(head.outcome == "resolved" for head in heads),
        errors=sum(head.outcome == "error" for head in heads),
        state=run_state(run.path, finished, planned),
    )


def state_of(run: RunDirectory) -> State:
    """Return the state of one run, as in its `RunSummary`.

    Raises:
        UsageError: A line of its rollouts is damaged.
    """
    return run_state(run.path, sum(not head.interrupted for head in run.heads()), run.info.planned)


def run_state(path: Path, finished: int, planned: int | None) -> State:
    """Return the state of a run directory; the arguments are fields of its `RunSummary`."""
    if is_locked(path):
        return "running"
    if planned is None:
        return "ended"
    return "finished" if finished >= planned else "interrupted"


def run_paths(folder: Path) -> list[Path]:
    """Return the run directories in `folder`, the newest last. A missing folder has none."""
    return [path for _, path in sorted(_dated(folder))]


def find_run(text: str) -> Path:
    """Return the run directory, or another existing path, that a user means.

    Args:
        text: A path, `latest`, or the name of a folder below `RUNS`. Of a path and a name that are equal, the
            one that is a run directory counts. `./latest` is a path.

    Raises:
        UsageError: There is none. The message suggests one.
    """
    if text == LATEST:
        for path in reversed(run_paths(RUNS)):
            with suppress(UsageError):  # damaged
                return RunDirectory.open(path).path
        raise UsageError(
            f"there is no run in {str(RUNS)!r}: start one with `swe-core run`, or give a run directory"
        )
    path, below = Path(text), RUNS / text
    # os.path: a name may be too long for a file
    if not os.path.isfile(path / RUN_FILE) and os.path.isfile(below / RUN_FILE):
        return below
    if os.path.exists(path):
        return path
    names = [one.name for one in run_paths(RUNS)]
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        hint = f"did you mean {str(RUNS / near[0])!r}?"
    elif names:
        hint = f"{LATEST!r} is {str(RUNS / names[-1])!r}, and `swe-core runs` lists all"
    else:
        hint = "give the directory that `swe-core run` printed"
    raise UsageError(f"there is no run {text!r}; {hint}")


def _dated(folder: Path) -> Iterator[tuple[datetime, Path]]:
    """Yield the start and path of each run directory in `folder`. A damaged one has the time of its file."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return
    for name in names:
        file = folder / name / RUN_FILE
        try:
            changed = file.stat().st_mtime
        except OSError:
            continue
        try:
            started = datetime.fromisoformat(orjson.loads(file.read_bytes())["created_at"])
            yield started.astimezone(UTC), folder / name
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            yield datetime.fromtimestamp(changed, UTC), folder / name
