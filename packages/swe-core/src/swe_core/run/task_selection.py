"""Select the tasks of a command, in this order:

1. `--tasks`, `--split`: read a task source, a file or directory of rows, or a data set on the Hub
2. `--filter COLUMN=GLOB`: keep the rows that match every filter
3. `--image-map FILE`: replace images
4. `--task ID`: keep these tasks, in the given order
5. `--verified FILE`: keep the usable tasks of a report of `swe-core tasks verify` on these images
6. `--shuffle SEED`: shuffle
7. `--limit N`: keep the first N
"""

from __future__ import annotations

import difflib
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from swe_core.api.column_filter import ColumnFilter, keep
from swe_core.api.contracts import tasks_of
from swe_core.api.task import IMAGE_NAME, Task, TaskSource
from swe_core.errors import ConfigError, TaskError
from swe_core.plugins.builtins import DEFAULT_TASKS, DEFAULTS
from swe_core.plugins.manager import PluginSet
from swe_core.run.components import resolve_component
from swe_core.run.settings import Settings
from swe_core.system import strict_json
from swe_core.system.plural import counted

_DATA_SET = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """A task source with the options that select tasks from it.

    Args:
        name: The source's component name.
        source: The source, which `tasks` reads.
        settings: Settings whose `[run]` table has the options.
        filters: Filters that the source does not apply itself.
    """

    name: str
    source: TaskSource
    settings: Settings
    filters: tuple[ColumnFilter, ...]

    def tasks(self) -> list[Task]:
        """Read the source and return the selected tasks.

        Raises:
            TaskError: A row is wrong, no task is left, or `--task` names an unknown task.
            ConfigError: A file that an option names is wrong, or a key of the image map matches no task.
        """
        run = self.settings.run
        images = _image_map(run.image_map) if run.image_map is not None else {}
        left = tasks_of(self.source, self.name)
        if not left:
            raise TaskError(f"the task source {self.name!r} has no tasks")
        if self.filters:
            left = keep([(task, task.model_dump()) for task in left], self.filters)
        if images and not (run.filter or run.only or run.skip_invalid):  # may have removed a key's task
            _refuse_unknown(images, left, f"the image map {str(run.image_map)!r}")
        left = [_with_image(task, images) for task in left]
        if run.only:
            left = _only(left, run.only)
        if run.verified is not None:
            left = _usable(left, run.verified)
        if run.shuffle is not None:
            random.Random(run.shuffle).shuffle(left)
        return left[: run.limit]


def selection(settings: Settings, plugins: PluginSet) -> TaskSelection:
    """Return the source that `--tasks` names, with the options that select from it.

    Without `--tasks` it is the source of a selected plugin, else the demo. A file is read by the selected
    source with a setting `file`, a data set by that with a setting `dataset`, else by the built-in one. A
    source with a setting `filter` applies `--filter` to its rows. For any other source, `--filter` applies
    to the fields of its tasks. A source with a setting `only` gets the ids of `--task`.

    Raises:
        UsageError: The source is unknown, or a setting is wrong.
    """
    run = settings.run
    filters = tuple(map(ColumnFilter.parse, run.filter))
    components = {registered.name: registered for registered in plugins.components("tasks")}
    split = {
        "split": ("--split", run.split),
        "skip_invalid": ("--skip-invalid", run.skip_invalid or None),
    }
    if run.tasks is None:
        chosen = resolve_component(settings, plugins, "tasks", None, split, DEFAULT_TASKS)
    elif run.tasks in components:
        chosen = resolve_component(settings, plugins, "tasks", run.tasks, split)
    elif Path(run.tasks).exists():
        file = {"file": ("--tasks FILE", Path(run.tasks))}
        chosen = resolve_component(settings, plugins, "tasks", _reader(plugins, "file"), {**file, **split})
    elif _DATA_SET.fullmatch(run.tasks) and not run.tasks.lower().endswith(_FILES):
        dataset = {"dataset": ("--tasks OWNER/NAME", run.tasks)}
        reader = _reader(plugins, "dataset")
        chosen = resolve_component(settings, plugins, "tasks", reader, {**dataset, **split})
    else:
        close = difflib.get_close_matches(run.tasks, sorted(components), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise TaskError(
            f"--tasks {run.tasks!r} is neither a file nor a data set OWNER/NAME nor a task source{hint}; "
            f"sources: {', '.join(sorted(components))}"
        )
    fields = chosen.registered.component.config.model_fields
    if filters and "filter" in fields:
        chosen, filters = chosen.with_settings({"filter": ("--filter", run.filter)}), ()
    if run.only and "only" in fields:
        chosen = chosen.with_settings({"only": ("--task", run.only)})
    return TaskSelection(chosen.name, cast(TaskSource, chosen.create()), settings, filters)


def _reader(plugins: PluginSet, setting: str) -> str | None:
    """Return the source that reads what `--tasks` gives; None where several selected ones could."""
    able = [
        source.name for source in plugins.selected("tasks") if setting in source.component.config.model_fields
    ]
    if len(able) > 1:
        return None  # the choice of the role's component names them
    return able[0] if able else DEFAULTS["tasks"]


def _only(tasks: Sequence[Task], wanted: Sequence[str]) -> list[Task]:
    by_id = {task.instance_id: task for task in tasks}
    for name in wanted:
        if name not in by_id:
            close = difflib.get_close_matches(name, list(by_id), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the first task is {tasks[0].instance_id!r}"
            raise TaskError(f"--task {name!r}: no such task; {hint}")
    return [by_id[name] for name in dict.fromkeys(wanted)]


def _usable(tasks: Sequence[Task], report: Path) -> list[Task]:
    from swe_core.run.verified_tasks import usable_ids

    usable = usable_ids(report, tasks)
    kept = [task for task in tasks if task.instance_id in usable]
    if not kept:
        raise TaskError(f"--verified {str(report)!r} calls none of {counted(len(tasks), 'task')} usable")
    return kept


def _image_map(file: Path) -> Mapping[str, str]:
    """Return image or instance id → image, from a TOML or JSON file.

    Raises:
        ConfigError: The file cannot be read, or is no such map.
    """
    name = repr(str(file))
    kind = "JSON" if file.suffix.lower() == ".json" else "TOML"
    try:
        text = file.read_text(encoding="utf-8")
        images = strict_json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the image map {name}: {error.strerror}") from None
    except strict_json.DuplicateKey as error:
        raise ConfigError(f"the image map {name}: the key {error.key!r} appears twice; remove one") from None
    except (ValueError, RecursionError) as error:  # either parser, or the UTF-8 decoder
        raise ConfigError(f"the image map {name} is not {kind}: {error}") from None
    expected = 'such as "owner/image:tag" = "registry.example/image:tag"'
    if not isinstance(images, dict):
        raise ConfigError(f"the image map {name} holds no table: expected pairs {expected}")
    for key, image in images.items():
        if not isinstance(image, str) or not IMAGE_NAME.fullmatch(image):
            raise ConfigError(
                f"the image map {name}: the value of {key!r} is not the name of a container image; "
                f"expected {expected}"
            )
    return images


def _refuse_unknown(images: Mapping[str, str], tasks: Sequence[Task], where: str) -> None:
    known = {name: None for task in tasks for name in (task.instance_id, task.image) if name is not None}
    for key in images:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the first id is {tasks[0].instance_id!r}"
            raise ConfigError(f"{where}: no task has the image or the instance id {key!r}; {hint}")


def _with_image(task: Task, images: Mapping[str, str]) -> Task:
    image = images.get(task.instance_id) or images.get(task.image or "")
    if image is None:
        return task
    return Task(**task.model_dump(exclude={"image"}), image=image)  # unlike model_copy, it validates
