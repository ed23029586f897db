"""The held-out tasks of a training, on which it evaluates its policy."""

from __future__ import annotations

from collections.abc import Callable

from swe_core.api.task import Task
from swe_core.errors import ConfigError, TaskError
from swe_core.run.plan import Plan
from swe_core.run.settings import Settings
from swe_core.run.task_selection import TaskSelection
from swe_core.system.plural import counted
from swe_trainer_trl.config import TRLConfig

_OF_TRAINING = {
    **dict.fromkeys(("split", "verified", "image_map", "shuffle", "limit")),
    **dict.fromkeys(("only", "filter"), ()),
    "skip_invalid": False,
}
"""Options of `[run]` for the tasks to train on alone, and their defaults."""

_NEED_TASKS = {"eval_every": "--eval-every", "eval_attempts": "worker.trl.eval_attempts"}
"""Settings that mean nothing without held-out tasks, as users write them."""


def held_out(plan: Plan, config: TRLConfig, select: Callable[[Settings], TaskSelection]) -> list[Task]:
    """Return the tasks of `worker.trl.eval_tasks`, in the order of their source; none without evaluations.

    The options that select from `--tasks`, and `--image-map`, do not apply to them.

    Args:
        plan: The plan of the training.
        select: Returns what settings select, with the plugins of the run.

    Raises:
        UsageError: They cannot be read, or some are trained on, or evaluations are set without tasks.
    """
    if config.eval_tasks is None:
        given = config.model_fields_set
        if "eval_tasks" not in given and given & _NEED_TASKS.keys():  # null ends the evaluations of a run
            named = " and ".join(text for name, text in _NEED_TASKS.items() if name in given)
            raise ConfigError(f"{named} needs --eval-tasks, the held-out tasks to evaluate on")
        return []
    run = plan.settings.run.model_copy(update={**_OF_TRAINING, "tasks": config.eval_tasks})
    try:
        tasks = select(plan.settings.model_copy(update={"run": run})).tasks()
    except (TaskError, ConfigError) as error:
        raise type(error)(f"--eval-tasks {config.eval_tasks!r}: {error}") from None
    trained = {task.instance_id for task in plan.tasks}
    both = [task.instance_id for task in tasks if task.instance_id in trained]
    if both:
        raise ConfigError(
            f"--eval-tasks {config.eval_tasks!r} has {counted(len(both), 'task')} that the run trains on "
            f"({', '.join(both[:3])}{', …' if len(both) > 3 else ''}): evaluate on tasks that are not trained"
        )
    return tasks
