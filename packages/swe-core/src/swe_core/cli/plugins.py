"""`swe-core plugins`: list plugins and their errors, or show one with its settings."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from swe_core.plugins.manager import Plugin, PluginSet, RegisteredComponent, allow_list
from swe_core.system.printable import one_line, printable
from swe_core.system.redaction import MARK, environment_redactor, names_credential, secret_settings

if TYPE_CHECKING:
    from rich.table import Table

    from swe_core.run.described_settings import DescribedSetting

_PIPED_WIDTH = 10_000
"""Width where no terminal wraps, characters: no line of a table is that long."""
_WIDTH = 1000
"""Characters of one text of a plugin."""


@click.command()
@click.argument("name", required=False)
@click.option(
    "-p",
    "extra",
    multiple=True,
    metavar="PLUGIN",
    help="A .py file or module to load too; no:NAME blocks a plugin. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(name: str | None, extra: tuple[str, ...], as_json: bool) -> None:
    """List every plugin with its distribution, version, components and error.

    With NAME, show one plugin or component: its hooks, its settings with types and defaults, and how to set
    them.

    Exit code: 1 when the plugin NAME is broken.
    """
    plugin_set = PluginSet(extra=extra, allow=allow_list(os.environ))
    if name is None:
        found = plugin_set.plugins.values()
        if as_json:
            click.echo(json.dumps([_as_dict(plugin) for plugin in found], indent=2))
        else:
            _print_table(_overview(found))
            click.echo("\n`swe-core plugins NAME` shows one with its settings.")
        return
    matches = _named(plugin_set, name, extra)
    if as_json:
        shown = [_in_full(plugin_set, plugin, components) for plugin, components in matches]
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        for number, (plugin, components) in enumerate(matches):
            if number:
                click.echo()
            _show(plugin_set, plugin, components)
    if any(plugin.error for plugin, _ in matches):
        raise click.exceptions.Exit(1)


Match = tuple[Plugin, Sequence[RegisteredComponent]]
"""A plugin, and which of its components to show."""


def _named(plugin_set: PluginSet, name: str, extra: Sequence[str]) -> list[Match]:
    """Return the plugin `name` with all components, and the components `name` of other plugins.

    Raises:
        PluginError: There is none.
    """
    matches: list[Match] = []
    for plugin in plugin_set.plugins.values():
        components = [one for one in plugin.components if plugin.name == name or one.name == name]
        if components or plugin.name == name:
            matches.append((plugin, components))
    if not matches:
        PluginSet((name,), extra, allow_list(os.environ))  # raises the PluginError, with a suggestion
    return matches


def _overview(found: Iterable[Plugin]) -> Table:
    from rich.table import Table

    table = Table("plugin", "from", "components", box=None, header_style="bold", pad_edge=False)
    for plugin in found:
        components = "\n".join(
            f"{registered.role} {registered.name}: {one_line(registered.component.summary, _WIDTH)}"
            for registered in plugin.components
        )
        said = f"broken: {one_line(plugin.error, _WIDTH)}" if plugin.error else components or "nothing"
        table.add_row(plugin.name, _origin(plugin), said)
    return table


def _show(plugin_set: PluginSet, plugin: Plugin, components: Sequence[RegisteredComponent]) -> None:
    """Print one plugin in full."""
    click.secho(plugin.name, bold=True, nl=False)
    click.echo(f": a plugin, {_origin(plugin)}")
    if plugin.error:
        click.echo(f"It is broken: {one_line(plugin.error, _WIDTH)}")
        return
    click.echo(f"Hooks: {', '.join(_hooks(plugin_set, plugin)) or 'none'}")
    if len(components) < len(plugin.components):
        click.echo(f"It has {len(plugin.components)} components: `swe-core plugins {plugin.name}` shows all.")
    if plugin.options:
        click.echo("Options of `swe-core run`:")
        for option in plugin.options:
            about = one_line(option.help, _WIDTH)
            click.echo(f"  {option.flag} {option.metavar}: {about} (the setting {option.setting})")
    for component in components:
        click.echo()
        _show_component(plugin, component)


def _show_component(plugin: Plugin, registered: RegisteredComponent) -> None:
    from rich.table import Table

    from swe_core.run.described_settings import describe_settings

    summary = one_line(registered.component.summary, _WIDTH)
    click.secho(f"{registered.role} {registered.name}", bold=True, nl=False)
    click.echo(f": {summary}" if summary else "")
    click.echo(f"Choose it with --{registered.role} {registered.name}.")
    defaults = [f"{role} {default}" for role, default in registered.component.defaults.items()]
    if defaults:
        click.echo(f"A run with it has other defaults: {', '.join(defaults)}.")
    settings = list(describe_settings(registered.component.config))
    if not settings:
        click.echo("It has no settings.")
        return
    table = Table("setting", "takes", "default", "what for", box=None, header_style="bold", pad_edge=False)
    for setting in settings:
        default = "required" if setting.required else _value(setting) or "unset"
        table.add_row(setting.name, setting.takes, default, one_line(setting.description, _WIDTH))
    click.echo()
    _print_table(table)
    ways = list(_ways(registered.role, registered.name, settings))
    if ways:
        click.echo("\nEach of these sets one:")
    for line in ways:
        click.echo(f"  {line}")


def _ways(role: str, name: str, settings: Sequence[DescribedSetting]) -> Iterator[str]:
    """Yield how to set a setting, for the first one of which a value is easy to show."""
    setting = next((one for one in settings if _some_value(one) is not None), None)
    value = _some_value(setting) if setting is not None else None
    if setting is None or value is None:
        return
    text = value if isinstance(value, str) else json.dumps(value)
    yield f"swe-core run --set {role}.{name}.{setting.name}={shlex.quote(text)}"
    if "-" not in name:  # shells cannot export such a variable
        parts = (role, name, *setting.name.split("."))
        yield f"export SWE_{'__'.join(parts).upper()}={shlex.quote(text)}"
    *tables, key = setting.name.split(".")
    yield f"[{'.'.join((role, name, *tables))}]  # in the file that --config names"
    yield f"{key} = {json.dumps(value)}"


def _some_value(setting: DescribedSetting) -> Any:
    """Return a value that a setting takes, if possible another one than its default; None for no idea."""
    if names_credential(setting.name):  # a run refuses it
        return None
    if setting.choices:
        return next((one for one in setting.choices if one != setting.default), setting.default)
    if isinstance(setting.default, bool):
        return not setting.default
    if isinstance(setting.default, int | float):
        return setting.default
    return "VALUE" if setting.kind in ("text", "path") else None


def _value(setting: DescribedSetting) -> str:
    """Return a default as TOML; "" for none."""
    if setting.default is None or setting.default in ((), [], {}, ""):
        return ""
    return one_line(json.dumps(_default(setting), ensure_ascii=False), _WIDTH)


def _default(setting: DescribedSetting) -> Any:
    """Return a default as JSON has it, without secrets: a plugin may take one from the environment."""
    from pydantic_core import to_jsonable_python

    if any(secret_settings({setting.name: setting.default})):
        return MARK
    return environment_redactor().value(to_jsonable_python(setting.default, fallback=str))


def _hooks(plugin_set: PluginSet, plugin: Plugin) -> list[str]:
    """Return the hooks that a plugin implements."""
    module = plugin_set.manager.get_plugin(plugin.name)
    return sorted(caller.name for caller in plugin_set.manager.get_hookcallers(module) or ())


def _origin(plugin: Plugin) -> str:
    return "built in" if plugin.builtin else f"{plugin.origin} {plugin.version}".strip()


def _print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or without a wrapped line where there is none."""
    from swe_core.system.safe_console import SafeConsole

    console = SafeConsole(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _as_dict(plugin: Plugin) -> dict[str, object]:
    return {
        "name": plugin.name,
        "distribution": plugin.origin,
        "version": plugin.version,
        "builtin": plugin.builtin,
        "components": [
            {"role": registered.role, "name": registered.name, "summary": registered.component.summary}
            for registered in plugin.components
        ],
        "error": plugin.error,
    }


def _in_full(
    plugin_set: PluginSet, plugin: Plugin, components: Sequence[RegisteredComponent]
) -> Mapping[str, object]:
    from swe_core.run.described_settings import describe_settings

    return {
        **_as_dict(plugin),
        "hooks": [] if plugin.error else _hooks(plugin_set, plugin),
        "options": [
            {"flag": one.flag, "setting": one.setting, "help": one.help, "metavar": one.metavar}
            for one in plugin.options
        ],
        "components": [
            {
                "role": registered.role,
                "name": registered.name,
                "summary": registered.component.summary,
                "settings": [
                    {
                        "name": f"{registered.role}.{registered.name}.{setting.name}",
                        "type": setting.kind,
                        "choices": list(setting.choices),
                        "limits": setting.limits,
                        "required": setting.required,
                        "default": _default(setting),
                        "description": printable(setting.description),
                    }
                    for setting in describe_settings(registered.component.config)
                ],
            }
            for registered in components
        ],
    }
