"""Options and arguments that several commands share: plugins, tasks, settings, runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swe_core.errors import UsageError
from swe_core.plugins.manager import PluginSet
from swe_core.run.components import load_plugins
from swe_core.run.settings import Settings, load_settings
from swe_core.system.printable import printable

if TYPE_CHECKING:
    from swe_core.rollout.run_directory import RunDirectory

F = TypeVar("F", bound=Callable[..., Any])


class RunPath(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """The directory of a run: a path, `latest`, or the name of a folder below `runs/`.

    Args:
        or_file: Whether other files are meant too. Their reader says what is wrong with a path.
    """

    name = "run"

    def __init__(self, *, or_file: bool = False) -> None:
        self._or_file = or_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path of an existing run directory, or of another file or directory that exists.

        Raises:
            UsageError: There is none.
        """
        from swe_core.rollout.run_list import LATEST, find_run

        if isinstance(value, Path):
            return value
        try:
            return find_run(value)
        except UsageError:
            if self._or_file and value != LATEST:
                return Path(value)
            raise


run_argument: Callable[[F], F] = click.argument("directory", metavar="RUN", type=RunPath())
"""Add the argument RUN as the parameter `directory`."""

run_arguments: Callable[[F], F] = click.argument("directories", metavar="[RUN]...", nargs=-1, type=RunPath())
"""Add any number of arguments RUN as the parameter `directories`."""


def names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Return the names in `A,B`."""
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


_PLUGINS = (
    click.option(
        "--plugins",
        callback=names,
        metavar="A,B",
        help="Plugins to load beside the built-ins, and no others. Each is the choice for its role.",
    ),
    click.option(
        "-p",
        "extra_plugins",
        multiple=True,
        metavar="PLUGIN",
        help="A .py file or module to load too; no:NAME blocks a plugin. Repeatable.",
    ),
)
_SOURCE = (
    click.option(
        "--tasks",
        metavar="FILE|DATASET|NAME",
        help="A .jsonl, .json or .parquet file, a data set OWNER/NAME on the Hub, or a task source. "
        "[default: demo]",
    ),
    click.option(
        "--split",
        metavar="NAME",
        help="Split of the data set. [default: the only one, else test, else train]",
    ),
    click.option(
        "--image-map",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML or JSON file that maps images or instance ids to other images.",
    ),
)
_CHOICE = (
    click.option(
        "--filter",
        multiple=True,
        metavar="COLUMN=GLOB",
        help="Keep rows whose column matches, such as repo=getmoto/*. Repeatable; all must match.",
    ),
    click.option(
        "--skip-invalid", is_flag=True, default=None, help="Leave invalid rows out, and say which kinds."
    ),
    click.option("--task", "only", multiple=True, metavar="ID", help="Task to keep. Repeatable."),
    click.option(
        "--verified",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Report of `tasks verify`; keep its usable tasks.",
    ),
    click.option("--shuffle", type=int, metavar="SEED", help="Seed of a random task order."),
    click.option(
        "--limit", type=click.IntRange(min=1), metavar="N", help="Number of tasks to keep, from the start."
    ),
)
_SETTINGS = (
    click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings."),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="Setting, such as limits.agent=600. Repeatable.",
    ),
)


def _decorator(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


plugin_options: Callable[[F], F] = _decorator(_PLUGINS)
"""Add `--plugins` and `-p` as the parameters `plugins` and `extra_plugins`."""

source_options: Callable[[F], F] = _decorator(_SOURCE)
"""Add the options of the task source. Each parameter has the name of its field of `RunOptions`."""

task_options: Callable[[F], F] = _decorator((*_SOURCE, *_CHOICE))
"""Add the options that select tasks. Each parameter has the name of its field of `RunOptions`."""

settings_options: Callable[[F], F] = _decorator(_SETTINGS)
"""Add `--config` and `--set` as the parameters `config` and `sets`."""


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as settings. An absent repeatable option is None, as any other absent option.

    `--plugins ""` selects no plugin, so its empty value stays.
    """
    return {name: None if value == () and name != "plugins" else value for name, value in options.items()}


def settings_and_plugins(
    config: Path | None, sets: Sequence[str], options: Mapping[str, Any]
) -> tuple[Settings, PluginSet]:
    """Return the settings of a command and the plugins that they name.

    Args:
        options: Field of `RunOptions` → value on the command line.

    Raises:
        UsageError: A setting or a plugin is wrong.
    """
    settings = load_settings(config, sets, {"run": given(options)})
    run = settings.run
    return settings, load_plugins(run)


def run_directory(path: Path) -> AbstractContextManager[RunDirectory]:
    """Open a run to resume or regrade, in the directory where its relative paths start.

    Raises:
        UsageError: `path` is no run directory.
    """
    from swe_core.run.resume import in_start_directory

    return in_start_directory(path, lambda sentence: click.echo(f"Note: {printable(sentence)}", err=True))
