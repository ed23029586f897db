"""Grade a run's kept patches again with its own settings, and compare the verdicts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import cast

from pydantic import BaseModel, ConfigDict

from swe_core.api.contracts import grade_patch
from swe_core.api.grader import Grade, Grader
from swe_core.api.records import Rollout
from swe_core.api.sandbox import SandboxProvider
from swe_core.api.task import Task
from swe_core.errors import SweError, UsageError, sentence
from swe_core.plugins.manager import PluginSet
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.components import resolve_component
from swe_core.run.plan import check_sandbox_supported, grader_of, limits_of, sandbox_spec
from swe_core.run.settings import Settings
from swe_core.run.task_selection import selection
from swe_core.system.plural import counted


class Difference(BaseModel):
    """One value of a grade that differs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    what: str
    before: str
    now: str


class Regraded(BaseModel):
    """One rollout, graded again.

    `cause` explains the differences: a changed task, image or test file, else flaky tests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    rollout: str
    task: str
    error: str | None = None
    differences: tuple[Difference, ...] = ()
    cause: str | None = None

    @property
    def same(self) -> bool:
        """Return whether the same inputs gave the same verdict."""
        return self.error is None and not self.differences


def chosen(run: RunDirectory, name: str | None) -> list[Rollout]:
    """Return the graded rollouts of `run` without evaluations of a training, or only the rollout `name`.

    Raises:
        UsageError: The run has no graded rollout, or none of that name.
    """
    graded = [rollout for rollout in run.rollouts() if rollout.grade is not None]
    if name is None:
        graded = [rollout for rollout in graded if rollout.evaluation is None]  # other tasks
        if not graded:
            raise UsageError(f"the run {str(run.path)!r} has no graded rollout: there is nothing to compare")
        return graded
    found = [rollout for rollout in graded if rollout.id == name]
    if not found:
        raise UsageError(
            f"the run {str(run.path)!r} has no graded rollout {name!r}; `swe-core report` lists them"
        )
    return found


async def regrade(
    run: RunDirectory, rollouts: Sequence[Rollout], settings: Settings, plugins: PluginSet
) -> AsyncIterator[Regraded]:
    """Grade the patches of `rollouts` again, one after the other. The run directory stays unchanged.

    Args:
        settings: The settings that the run started with.

    Raises:
        UsageError: The sandbox provider, the grader or the tasks are no longer available.
    """
    provider = cast(
        SandboxProvider, resolve_component(settings, plugins, "sandbox", settings.run.sandbox).create()
    )
    check_sandbox_supported(provider, settings, agents=False)
    grader = cast(Grader, grader_of(settings, plugins).create())
    tasks = {task.instance_id: task for task in selection(settings, plugins).tasks()}
    for rollout in rollouts:
        task = tasks.get(rollout.task_id)
        if task is None:
            error = f"the task {rollout.task_id!r} is no longer in {settings.run.tasks!r}"
            yield Regraded(rollout=rollout.id, task=rollout.task_id, error=error)
            continue
        yield await _again(run, rollout, task, settings, provider, grader)


async def _again(
    run: RunDirectory,
    rollout: Rollout,
    task: Task,
    settings: Settings,
    provider: SandboxProvider,
    grader: Grader,
) -> Regraded:
    spec = sandbox_spec(task, settings).for_grading()
    patch = run.patch(rollout.id)
    if patch is None and rollout.patch_bytes:
        error = f"its patch of {counted(rollout.patch_bytes, 'byte')} is no longer in the run directory"
        return Regraded(rollout=rollout.id, task=rollout.task_id, error=error)
    try:
        graded = await grade_patch(
            grader, task, patch or b"", provider, spec, limits_of(settings)(task).grade
        )
    except SweError as error:
        return Regraded(rollout=rollout.id, task=rollout.task_id, error=sentence(error))
    before = cast(Grade, rollout.grade)
    differences = tuple(compare(before, graded.grade))
    return Regraded(
        rollout=rollout.id, task=rollout.task_id, differences=differences, cause=_cause(differences)
    )


def compare(before: Grade, now: Grade) -> Iterator[Difference]:
    """Yield the differences between two grades, except times and the log, which contains times."""
    for name in ("resolved", "reward", "channel", "applied_with", "test_exit_code", "image_id"):
        yield from _difference(name, getattr(before, name), getattr(now, name))
    for name in ("task", "patch", "tests", "tree"):
        if before.hashes is not None and now.hashes is not None:
            yield from _difference(name, getattr(before.hashes, name), getattr(now.hashes, name))
    for kind in ("fail_to_pass", "pass_to_pass"):
        old, new = getattr(before, kind), getattr(now, kind)
        for test in dict.fromkeys((*old, *new)):
            yield from _difference(test, old.get(test), new.get(test))
    old_kinds = sorted({f"{one.kind} {one.path}".strip() for one in before.tampering})
    new_kinds = sorted({f"{one.kind} {one.path}".strip() for one in now.tampering})
    yield from _difference("tampering", ", ".join(old_kinds), ", ".join(new_kinds))


def _difference(what: str, before: object, now: object) -> Iterator[Difference]:
    if before != now:
        yield Difference(what=what, before=str(before), now=str(now))


def _cause(differences: Sequence[Difference]) -> str | None:
    if not differences:
        return None
    changed = {difference.what for difference in differences}
    for what, words in {
        "patch": "the kept patch has changed",
        "task": "the task has changed",
        "image_id": "the image has changed",
        "tests": "the test files have changed",
        "tree": "the graded work tree has changed",
    }.items():
        if what in changed:
            return words
    return "the same inputs gave another result: flaky tests or a different machine"
