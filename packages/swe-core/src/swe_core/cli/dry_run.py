"""What a run would do, for `swe-core run --dry-run`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from swe_core.api.records import Outcome
from swe_core.api.task import Task
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.plan import BlackBoxPlan, Plan
from swe_core.system.plural import counted
from swe_core.system.printable import printable
from swe_core.system.urls import without_secrets

_NAMED = 3
"""Tasks that are named."""


def describe(
    plan: Plan, directory: Path, begun: RunDirectory | None, again: Collection[Outcome], *, trains: bool
) -> str:
    """Return what `plan` would run, as lines of a name and its value.

    Args:
        directory: The run directory, which is not created.
        begun: The run to resume; None for a new one.
        again: Outcomes of the rollouts that a resume runs again.
        trains: Whether the worker decides the number of rollouts, as a training does.

    Raises:
        UsageError: `directory` holds something else, or a record of `begun` is damaged.
    """
    if begun is None:
        RunDirectory.require_free(directory)
    return "\n".join(
        f"{name:<10}{printable(value)}" for name, value in _lines(plan, directory, begun, again, trains)
    )


def _lines(
    plan: Plan, directory: Path, begun: RunDirectory | None, again: Collection[Outcome], trains: bool
) -> Iterator[tuple[str, str]]:
    settings, run = plan.settings, plan.settings.run
    if trains:
        yield "rollouts", f"as many as the training needs, {run.concurrency} at a time"
    else:
        ids = [f"{task.instance_id}-{attempt}" for task in plan.tasks for attempt in range(run.attempts)]
        each = f"{counted(len(plan.tasks), 'task')} × {counted(run.attempts, 'attempt')}"
        left = "" if begun is None else f", {len(_left(ids, begun, again))} of them left"
        yield "rollouts", f"{len(ids):,} = {each}{left}, {run.concurrency} at a time"
    yield "tasks", f"{run.tasks}: {_named(plan.tasks)}"
    yield "agent", plan.agent.name
    wanted = settings.resources
    yield (
        "sandbox",
        f"{plan.sandbox.name}, network {wanted.network}, {wanted.memory_mb} MiB, {wanted.cpus:g} processors",
    )
    yield "engine", _engine(plan)
    yield "grader", plan.grader.name
    yield "worker", plan.worker.name
    yield "executor", plan.executor.name
    yield "limits", ", ".join(f"{name} {value:g} s" for name, value in settings.limits.model_dump().items())
    budget = settings.budget.model_dump(exclude={"grace"}, exclude_none=True)
    yield "budget", ", ".join(f"{name} {value:,}" for name, value in budget.items()) or "none"
    yield "records", f"{directory} ({'not created yet' if begun is None else 'of the resumed run'})"


def _left(ids: Sequence[str], begun: RunDirectory, again: Collection[Outcome]) -> list[str]:
    """Return the rollouts that a resume would run."""
    done = {head.id for head in begun.heads() if head.outcome not in again or head.cancelled_as is not None}
    return [one for one in ids if one not in done]


def _named(tasks: Sequence[Task]) -> str:
    first = ", ".join(task.instance_id for task in tasks[:_NAMED])
    return first if len(tasks) <= _NAMED else f"{first} and {len(tasks) - _NAMED:,} more"


def _engine(plan: Plan) -> str:
    side = plan.model_side
    if side is None:
        return "none: the agent makes no LLM calls"
    if isinstance(side, BlackBoxPlan):
        return f"none (black-box mode): the agent calls {side.model} at {side.url}"
    config = side.config
    model, url = getattr(config, "model", None), getattr(config, "url", None)
    urls = ", ".join(map(without_secrets, [url] if isinstance(url, str) else url or ()))
    return side.name + (f": {model}" if model else "") + (f" at {urls}" if urls else "")
