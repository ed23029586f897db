"""`swe-core doctor`: check what this machine can run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from swe_core.cli.options import plugin_options, settings_options
from swe_core.plugins.manager import HOOKS, PluginSet, allow_list
from swe_core.run.settings import Settings, load_settings
from swe_core.system.printable import one_line

if TYPE_CHECKING:
    from swe_core.cli.doctor.checks import PlannedCheck, Result

_STYLE = {"ok": "green", "missing": "red", "info": "dim"}
_WIDTH = 500
"""Characters of one finding."""


@click.command()
@plugin_options
@click.option("--engine-url", metavar="URL", help="Engine to ask for its models.")
@click.option(
    "--agent", metavar="NAME", help="Run one scripted turn of this agent instead, and print what was seen."
)
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    plugins: tuple[str, ...] | None,
    extra_plugins: tuple[str, ...],
    engine_url: str | None,
    agent: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check what this machine can run with the chosen plugins, and print a remedy for each missing part.

    With --agent, the agent runs once in a sandbox, and a script answers its LLM calls: one command
    by its own shell tool, then a text. No model and no key are needed.

    The output names keys and never shows them. The command also checks installed plugins that are not chosen;
    their results do not change the exit code.

    Exit code: 1 when a run with these plugins lacks something.
    """
    if agent is not None:
        _agent(plugins, extra_plugins, agent, load_settings(config, sets), as_json)
        return
    from swe_core.cli.doctor import checks as examination

    plugin_set = PluginSet(plugins, extra_plugins, allow_list(os.environ))
    settings = load_settings(config, sets)
    asked = examination.asked_of(plugin_set, {role: getattr(settings, role) for role in HOOKS})
    if engine_url is not None:
        asked.append(_engine(plugin_set, engine_url))
    results = examination.look(asked, examination.secrets_of(os.environ))
    missing = [result for result in results if result.blocks]
    if as_json:
        found = {"ready": not missing, "checks": [_as_dict(result) for result in results]}
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    else:
        _print(results, missing)
    if missing:
        raise click.exceptions.Exit(1)


def _agent(
    plugins: tuple[str, ...] | None,
    extra_plugins: tuple[str, ...],
    name: str,
    settings: Settings,
    as_json: bool,
) -> None:
    """Run one scripted turn of an agent, and print what was seen."""
    from swe_core.cli.doctor.agent import look_at
    from swe_core.run.components import resolve_component
    from swe_core.system.event_loop import run as run_in_loop

    found = PluginSet(plugins, extra_plugins, allow_list(os.environ))
    agent = resolve_component(settings, found, "agent", name).create()
    provider = resolve_component(settings, found, "sandbox", settings.run.sandbox).create()
    seen = run_in_loop(look_at, agent, provider)
    wrong = [one for one in seen if one.remedy]
    if as_json:
        click.echo(orjson.dumps([asdict(one) for one in seen], option=orjson.OPT_INDENT_2))
    else:
        width = max(len(one.name) for one in seen)
        click.echo(f"{agent.name} {agent.version}".strip())
        for one in seen:
            click.echo(f"  {one.name:<{width}}  {one_line(one.text, _WIDTH)}")
            if one.remedy:
                click.secho(f"  {'':<{width}}  {one_line(one.remedy, _WIDTH)}", fg="yellow")
    if wrong:
        raise click.exceptions.Exit(1)


def _engine(plugins: PluginSet, url: str) -> PlannedCheck:
    from swe_core.api.checks import Check
    from swe_core.cli.doctor.checks import CORE, PlannedCheck, key_of, used_components
    from swe_core.cli.doctor.endpoint import endpoint

    variable, key = key_of(used_components(plugins).get("engine"))
    return PlannedCheck(
        CORE, Check("engine URL", "--engine-url", lambda: endpoint(url, variable, key)), used=True
    )


def _print(results: Sequence[Result], missing: Sequence[Result]) -> None:
    from rich.text import Text

    from swe_core.system.safe_console import SafeConsole

    console = SafeConsole(highlight=False)
    width = max(len(result.asked.check.name) for result in results)
    for plugin, group in groupby(sorted(results, key=_place), key=lambda result: result.asked.plugin):
        found = list(group)
        unused = "" if found[0].asked.used else "  (not chosen)"
        console.print(Text.assemble((plugin, "bold"), (unused, "dim")), soft_wrap=True)
        for result in found:
            finding, check = result.finding, result.asked.check
            state = Text(f"  {finding.state:<7}  ", _STYLE[finding.state] if result.asked.used else "dim")
            lines = [Text.assemble(state, f"{check.name:<{width}}  ", one_line(finding.text, _WIDTH))]
            if finding.state == "missing":
                remedy = f"{one_line(finding.remedy, _WIDTH)} " if finding.remedy else ""
                lines.append(Text(f"{' ' * (13 + width)}{remedy}Needed for: {check.needed_for}.", "yellow"))
            for line in lines:
                console.print(line, soft_wrap=True)
    names = ", ".join(f"{result.asked.check.name} ({result.asked.plugin})" for result in missing)
    last = f"Missing: {names}" if missing else "Nothing is missing for a run with these plugins."
    console.print(Text(last, "bold red" if missing else "bold green"), soft_wrap=True)


def _place(result: Result) -> tuple[bool, bool, str]:
    """The core first, then plugins that are used, then the rest."""
    from swe_core.cli.doctor.checks import CORE

    asked = result.asked
    return asked.plugin != CORE, not asked.used, asked.plugin


def _as_dict(result: Result) -> dict[str, object]:
    check = result.asked.check
    return {
        "plugin": result.asked.plugin,
        "used": result.asked.used,
        "name": check.name,
        "needed_for": check.needed_for,
        **asdict(result.finding),
        "seconds": round(result.seconds, 3),
    }
