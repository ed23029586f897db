"""Resume a run: enter its working directory, and check that its settings and tasks are unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_core.errors import UsageError
from swe_core.rollout.run_directory import Change, RunDirectory, working_directory

if TYPE_CHECKING:
    from swe_core.run.plan import Plan
    from swe_core.run.settings import Settings

ADJUSTABLE = (
    *("run.concurrency", "run.engine_url", "run.max_errors", "run.sandbox_retries", "server.port"),
    *("run.executor", "run.workers", "run.address"),
    *("push.to", "push.private", "push.every"),
)
"""Settings that may change on resume, because no verdict depends on them."""
_OF_PLACES = "executor."
"""Tables of components that may change on resume: they say where rollouts run."""
_OF_VERDICTS = ("agent.", "grader.")
"""Tables of components on whose settings verdicts depend."""


@contextmanager
def in_start_directory(path: Path, tell: Callable[[str], None]) -> Iterator[RunDirectory]:
    """Open the run directory `path`, and work in the directory where its run was started.

    Relative paths in the run's settings start there. If that directory no longer exists, the process stays
    in the current one. On exit the process returns to its former directory, if that still exists.

    Args:
        tell: Receives a sentence for the user where the two directories differ.

    Raises:
        UsageError: `path` is no run directory, has another format, or is relative to a removed directory.
    """
    run = RunDirectory.open(path)
    there, here = run.info.directory, working_directory()
    if there is None or there == here:
        yield run
        return
    about = f"the run {str(path)!r} was started in {there!r}"
    if not os.path.isdir(there) or not os.access(there, os.X_OK):
        found = "not found" if here is None else f"looked for in {here!r}"
        tell(f"{about}, which is not accessible here: relative paths in its settings are {found}")
        yield run
        return
    if here is None and not path.is_absolute():  # the kernel still finds paths such as `../run`
        raise UsageError(
            f"{str(path)!r} is relative to the working directory, which was removed: give the absolute path"
        )
    tell(f"{about}: relative paths in its settings start there")
    path = path.absolute()
    os.chdir(there)
    try:
        yield RunDirectory.open(path)
    finally:
        if here is not None:
            os.chdir(here)


def check_same(run: RunDirectory, plan: Plan, adjustable: Collection[str] = ()) -> None:
    """Refuse to resume `run` with other settings or tasks: its rollouts would not be comparable.

    Args:
        adjustable: Settings beside `ADJUSTABLE` that may change, such as "worker.openenv.port".

    Raises:
        UsageError: A setting or a task has changed since the run was started.
    """
    may_change = (*ADJUSTABLE, *adjustable)
    where = f"the run {str(run.path)!r} cannot be resumed"
    now = dict(_flat(plan.settings.model_dump(mode="json")))
    # A setting that is new in this version has its default in both.
    for key, before in _flat(run.info.settings):
        if key == "run.tasks" and before is None:  # the plan names the source; its tasks are compared below
            continue
        if key not in may_change and not key.startswith(_OF_PLACES) and now.get(key) != before:
            raise UsageError(
                f"{where}: the setting {key!r} was {before!r} when it was started and is {now.get(key)!r} "
                f"now; only {', '.join(may_change)} may change"
            )
    recorded = dict(_flat(run.info.settings))
    for key, value in now.items():  # a table of a component has only what is set
        new = key not in recorded and key.startswith(_OF_VERDICTS) and value is not None
        if new and key not in may_change:
            raise UsageError(
                f"{where}: the setting {key!r} was not set when it was started and is {value!r} now; only "
                f"{', '.join(may_change)} may change"
            )
    check_tasks(run, plan)


def check_fixed(run: RunDirectory, plan: Plan, fixed: Collection[str]) -> None:
    """Refuse to resume `run` with another value of a setting that must not change, or with other tasks.

    Args:
        fixed: Settings, and tables of settings, such as "run.agent" and "worker.trl.lora".

    Raises:
        UsageError: One of them, or a task, has changed since the run was started.
    """
    before = dict(_flat(run.info.settings))
    now = dict(_flat(plan.settings.model_dump(mode="json")))
    for key in sorted(before.keys() | now.keys()):
        if any(f"{key}.".startswith(f"{name}.") for name in fixed) and before.get(key) != now.get(key):
            raise UsageError(
                f"the run {str(run.path)!r} cannot be resumed: the setting {key!r} was {before.get(key)!r} "
                f"when it was started and is {now.get(key)!r} now; start a new run with --out"
            )
    check_tasks(run, plan)


def remember(run: RunDirectory, settings: Settings) -> None:
    """Record the settings with which `run` goes on, so that a later resume has them.

    The caller has locked its directory.

    Raises:
        UsageError: `run.json` cannot be written.
    """
    values = settings.model_dump(mode="json")
    before, at = dict(_flat(run.info.settings)), datetime.now(UTC)
    changed = [
        Change(at=at, setting=key, before=before.get(key), after=value)
        for key, value in _flat(values)
        if before.get(key) != value and key != "run.tasks"
    ]
    if not changed:
        return
    values["run"]["tasks"] = run.info.settings.get("run", {}).get("tasks")
    info = run.info.model_copy(update={"settings": values, "changes": (*run.info.changes, *changed)})
    try:
        run.rewrite(info)
    except OSError as error:
        raise UsageError(
            f"the run directory {str(run.path)!r} cannot be resumed: {error.strerror or error}"
        ) from None


def check_tasks(run: RunDirectory, plan: Plan) -> None:
    """Refuse to resume `run` with other tasks, or with the same in another order.

    Raises:
        UsageError: They have changed since the run was started.
    """
    where = f"the run {str(run.path)!r} cannot be resumed"
    before_tasks, tasks = run.info.tasks, {task.instance_id: task.digest for task in plan.tasks}
    for name in before_tasks.keys() | tasks.keys():
        if before_tasks.get(name) != tasks.get(name):
            what = (
                "is new" if name not in before_tasks else "is missing" if name not in tasks else "has changed"
            )
            raise UsageError(f"{where}: its tasks have changed: {name!r} {what}; start a new run with --out")
    if list(before_tasks) != list(tasks):
        raise UsageError(f"{where}: the order of its tasks has changed; start a new run with --out")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (full name, value) of each setting."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
