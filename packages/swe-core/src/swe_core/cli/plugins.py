"""`swe-core plugins`: list plugins, their components and their errors."""

from __future__ import annotations

import json
import os

import click

from swe_core.plugins.manager import Plugin, PluginSet, allow_list


@click.command()
@click.option(
    "-p",
    "extra",
    multiple=True,
    metavar="PLUGIN",
    help="A .py file or module to load too; no:NAME blocks a plugin. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(extra: tuple[str, ...], as_json: bool) -> None:
    """List every plugin with its distribution, version, components and error."""
    found = PluginSet(extra=extra, allow=allow_list(os.environ)).plugins.values()
    if as_json:
        click.echo(json.dumps([_as_dict(plugin) for plugin in found], indent=2))
        return
    from rich.table import Table

    from swe_core.system.safe_console import SafeConsole

    table = Table("plugin", "from", "components", box=None, header_style="bold", pad_edge=False)
    for plugin in found:
        components = "\n".join(
            f"{registered.role} {registered.name}: {registered.component.summary}"
            for registered in plugin.components
        )
        origin = "built in" if plugin.builtin else f"{plugin.origin} {plugin.version}".strip()
        table.add_row(
            plugin.name, origin, f"broken: {plugin.error}" if plugin.error else components or "nothing"
        )
    SafeConsole(soft_wrap=False).print(table, markup=False)


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
