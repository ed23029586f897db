"""`swe-core capture`: record the exact tokens of agents that the user starts."""

from __future__ import annotations

import os
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from swe_core.cli.options import plugin_options, settings_and_plugins, settings_options
from swe_core.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from swe_core.api.engine import Engine
    from swe_core.run.capture import Sessions
    from swe_core.system.redaction import Redactor


@click.command()
@plugin_options
@click.option("--engine", metavar="NAME", help="Engine that answers the calls. [default: vllm]")
@click.option(
    "--engine-url",
    multiple=True,
    metavar="URL",
    callback=lambda _ctx, _param, urls: ",".join(urls) or None,
    help="Base URL of the engine; for vllm repeatable.",
)
@click.option("--model", metavar="NAME", help="Model at the engine's URL.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; another one than loopback needs --key-env.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8100,
    show_default=True,
    metavar="N",
    help="Port; 0 selects a free one.",
)
@click.option(
    "--key-env",
    metavar="VAR",
    help="Environment variable with the key that opening and ending a session needs.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/capture"),
    show_default=True,
    help="Capture directory; one that was killed is opened again.",
)
@settings_options
def capture(
    host: str,
    port: int,
    key_env: str | None,
    out: Path,
    config: Path | None,
    sets: tuple[str, ...],
    **options: Any,
) -> None:
    """Record the exact tokens of agents that you start yourself.

    POST /sessions with {"name": NAME} opens a session and answers with its API key, which agents use in any
    dialect. DELETE /sessions/NAME ends it and answers with its chains. At the end (Ctrl-C) the chains of all
    other sessions are printed, a line of JSON each.
    """
    import anyio

    from swe_core.api import contracts
    from swe_core.run.capture import Sessions, opened
    from swe_core.run.components import resolve_component
    from swe_core.run.plan import refuse_unknown_tables
    from swe_core.system.descriptors import raise_descriptor_limit
    from swe_core.system.event_loop import ending_signals, run, settled
    from swe_core.system.redaction import redaction_scope

    key = _key(key_env)
    if key is None and not _is_loopback(host):
        raise ConfigError(
            f"on {host!r} anybody could read the sessions and use the engine: give a key with --key-env VAR"
        )
    settings, plugins = settings_and_plugins(config, sets, options)
    refuse_unknown_tables(settings, plugins)
    shared = {
        "url": ("--engine-url", settings.run.engine_url),
        "model": ("--model", settings.run.model),
        "file": ("--recording", settings.run.recording),
    }
    component = resolve_component(settings, plugins, "engine", settings.run.engine, shared, "vllm")
    raise_descriptor_limit()  # each session holds a file

    async def serve(held: ExitStack, redactor: Redactor) -> Sessions:
        async with cast("Engine", component.create()) as engine:
            await contracts.check(engine)
            directory = held.enter_context(opened(out, redactor))  # only now: a wrong engine leaves none
            sessions = Sessions(directory, engine, settings.budget, key)
            with anyio.open_signal_receiver(*ending_signals()) as signals:
                async with sessions.served(host, port, settings.server.max_body) as url:
                    click.echo(f"capture: {url}, records in {out}", err=True)
                    with settled():
                        await anext(aiter(signals))
            return sessions

    with redaction_scope() as redactor, ExitStack() as held:
        if key is not None:
            redactor.add(key)
        for line in run(serve, held, redactor).rest():
            click.echo(line)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"--key-env: the variable {variable!r} is unset or empty: set it")
    return key


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
