"""`swe-core config show`: the effective settings, and where each comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swe_core.cli.run import OVERRIDES, SECTIONS, add_options, option_tables
from swe_core.cli.run import run as run_command
from swe_core.cli.sections import SectionedCommand
from swe_core.errors import UsageError
from swe_core.plugins.manager import PluginSet, allow_list
from swe_core.run.components import load_plugins
from swe_core.run.settings import load_settings
from swe_core.system.printable import printable
from swe_core.system.redaction import MARK, environment_redactor

if TYPE_CHECKING:
    from swe_core.run.effective import Effective, Entry

_NO_SETTINGS = {"out", "resume", "retry_errors", "dry_run", "as_json", "verbose"}
"""Parameters of `swe-core run` that set no setting."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CREDENTIALS = re.compile(r"://[^/\s@]*@")
"""User and password in a URL."""
_WIDEST = 60
"""Characters of a line above which the comments of a table do not line up with its own."""


class _AsRun(SectionedCommand):
    """A command with the options of `swe-core run` that set settings, those of plugins included."""

    _asked = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options. The first call asks the plugins for theirs."""
        if not self._asked:
            self._asked = True
            add_options(self, PluginSet(allow=allow_list(os.environ)).plugins.values())
        return super().get_params(ctx)


@click.group()
def config() -> None:
    """Show the effective settings and where each comes from."""


@config.command(cls=_AsRun, sections=SECTIONS)
@click.option("--all", "everything", is_flag=True, help="Print the defaults too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the defaults.")
def show(config: Path | None, sets: tuple[str, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Show the settings of a run and where each comes from.

    They are those that `swe-core run` would have with the same options, and come from a file, an environment
    variable, the command line, a plugin or the default. The lines are TOML, which --config reads. The
    settings of the components that the run would use are among them. Nothing is started, and keys are never
    shown.

    Exit code: 2 when a setting or a component is wrong; what is known is printed all the same.
    """
    from swe_core.run.effective import Layers, effective_settings

    tables = option_tables(options)
    overrides: Mapping[str, str] = click.get_current_context().meta.get(OVERRIDES, {})
    settings = load_settings(config, sets, tables, overrides=overrides)
    layers = Layers(config, sets, tables, overrides)
    found = effective_settings(settings, load_plugins(settings.run), layers)
    text = _as_json(found) if as_json else "\n".join(_lines(found, everything))
    click.echo(_without_secrets(printable(_without_secrets(text))))
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise UsageError(found.problems[0] + more)


show.params += [
    param for param in run_command.params if param.expose_value and param.name not in _NO_SETTINGS
]


def _lines(found: Effective, everything: bool) -> Iterator[str]:
    """Yield the settings as TOML; each has its origin in a comment."""
    from swe_core.run.effective import DEFAULT

    shown = [
        entry
        for entry in found.entries
        if everything or entry.origin != DEFAULT or (entry.choice and entry.value is not None)
    ]
    for table, entries in groupby(shown, key=lambda entry: entry.table):
        idle = found.idle.get(table)
        yield f"[{_dotted(table)}]{f'  # {idle}' if idle else ''}"
        lines = [(_assignment(entry), str(entry.origin)) for entry in entries]
        width = max((len(line) for line, _ in lines if len(line) <= _WIDEST), default=0)
        yield from (f"{line:<{width}}  # {origin}" for line, origin in lines)
        yield ""
    if left := len(found.entries) - len(shown):
        yield f"# {left} settings have their defaults: --all shows them."


def _assignment(entry: Entry) -> str:
    if entry.value is None:
        return f"# {_dotted(entry.key)} is unset"
    try:
        return f"{_dotted(entry.key)} = {_toml(entry.value)}"
    except ValueError:  # it has a null, which TOML cannot say
        return f"# {_dotted(entry.key)} = {json.dumps(entry.value, ensure_ascii=False)}"


def _toml(value: Any) -> str:
    """Return a value on one line.

    Raises:
        ValueError: TOML has no such value.
    """
    import tomlkit

    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_dotted((name,))} = {_toml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    text: str = tomlkit.item(value).as_string()
    return text


def _dotted(path: Sequence[str]) -> str:
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part) for part in path)


def _as_json(found: Effective) -> str:
    settings = {
        _dotted((*entry.table, *entry.key)): {
            "value": entry.value,
            "layer": entry.origin.layer,
            "source": entry.origin.name,
            "used": entry.table not in found.idle,
        }
        for entry in found.entries
    }
    return json.dumps({"settings": settings, "problems": found.problems}, indent=2, ensure_ascii=False)


def _without_secrets(text: str) -> str:
    return environment_redactor().text(_CREDENTIALS.sub(f"://{MARK}@", text))
