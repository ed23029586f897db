"""Whether a run that is gone on with is still the same run: where it was started, its settings, its tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_core.errors import UsageError
from swe_core.rollout.run_directory import RunDirectory, working_directory

if TYPE_CHECKING:
    from swe_core.run.plan import Plan

ADJUSTABLE = (
    *("run.concurrency", "run.engine_url", "run.sandbox_retries", "server.port"),
    *("push.to", "push.private", "push.every"),
)
"""Settings that no verdict depends on, and that may change when a run is gone on with."""


@contextmanager
def where_it_was_started(path: Path, tell: Callable[[str], None]) -> Iterator[RunDirectory]:
    """Open the run directory `path`, and be where its run was started for the length of the context, since
    relative paths in its settings are of there. Where that is gone, the process stays where it is; where
    the current directory is gone, it stays there.

    Args:
        tell: Is given a sentence where the one directory is not the other.

    Raises:
        UsageError: `path` is no run directory, is of another format, or is relative to a directory that is
            gone.
    """
    run = RunDirectory.open(path)
    there, here = run.info.directory, working_directory()
    if there is None or there == here:
        yield run
        return
    about = f"the run {str(path)!r} was started in {there!r}"
    if not os.path.isdir(there) or not os.access(there, os.X_OK):
        found = "not found" if here is None else f"looked for in {here!r}"
        tell(f"{about}, where nobody can go here: relative paths in its settings are {found}")
        yield run
        return
    if here is None and not path.is_absolute():  # as `../run`, which the kernel still finds
        raise UsageError(
            f"{str(path)!r} is relative to the working directory, which was removed: give the whole path"
        )
    tell(f"{about}: relative paths in its settings are looked for there")
    path = path.absolute()
    os.chdir(there)
    try:
        yield RunDirectory.open(path)
    finally:
        if here is not None:
            os.chdir(here)


def check_same(run: RunDirectory, plan: Plan) -> None:
    """Refuse to go on with `run` as another one: half of its rollouts would not compare with the rest.

    Raises:
        UsageError: A setting or a task is not what it was when the run was started.
    """
    where = f"the run {str(run.path)!r} cannot be gone on with"
    now = dict(_flat(plan.settings.model_dump(mode="json")))
    # A setting that a later version knows besides has its default in both.
    for key, before in _flat(run.info.settings):
        if key not in ADJUSTABLE and now.get(key) != before:
            raise UsageError(
                f"{where}: the setting {key!r} was {before!r} when it was started and is {now.get(key)!r} "
                f"now; only {', '.join(ADJUSTABLE)} may change"
            )
    before_tasks, tasks = run.info.tasks, {task.instance_id: task.digest for task in plan.tasks}
    for name in before_tasks.keys() | tasks.keys():
        if before_tasks.get(name) != tasks.get(name):
            what = "is new" if name not in before_tasks else "is gone" if name not in tasks else "has changed"
            raise UsageError(
                f"{where}: its tasks are others now: {name!r} {what}; start a new run with --out"
            )
    if list(before_tasks) != list(tasks):
        raise UsageError(f"{where}: its tasks come in another order now; start a new run with --out")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full names."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
