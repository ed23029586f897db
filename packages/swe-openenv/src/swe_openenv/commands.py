"""The commands `swe-core openenv …`. Slow imports happen only when a command runs."""

from __future__ import annotations

from pathlib import Path

import click

from swe_core.system.plural import counted


@click.group()
def openenv() -> None:
    """Serve rollouts in OpenEnv's protocols."""


@openenv.command()
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting, such as run.agent=pi. Repeatable.",
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port. [default: 8000]")
@click.option(
    "--interactive/--no-interactive",
    default=None,
    help="Let the client be the agent: it works in the task's sandbox with exec, read and write.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/openenv"),
    help="Run directory; a server that starts again on it answers for its episodes. [default: runs/openenv]",
)
def serve(
    config: Path | None,
    sets: tuple[str, ...],
    host: str | None,
    port: int | None,
    interactive: bool | None,
    out: Path,
) -> None:
    """Serve the tasks as an OpenEnv environment.

    Each episode is a rollout on this machine. Agent, sandbox, engine and grader come from the settings, as
    for `swe-core run`.
    """
    from swe_core.run.execute import execute
    from swe_core.system.event_loop import run
    from swe_core.system.redaction import redaction_scope
    from swe_openenv.plans import begun, load_plan, log_to_stderr, observe
    from swe_openenv.server.worker import worker_of

    given = {"host": host, "port": port, "interactive": interactive}
    own = {name: value for name, value in given.items() if value is not None}
    plan, plugins = load_plan(config, sets, {"worker": {"openenv": own or None}})
    worker = worker_of(plan)
    resume = begun(plan, out)
    with redaction_scope() as redactor:
        log_to_stderr(plugins, redactor)

        async def serving() -> None:
            served = await execute(plan, plugins, out, observe, worker, resume=resume, again=["cancelled"])
            if served.stopped is not None:
                raise served.stopped

        run(serving)


@openenv.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings. [default: demo]")
@click.option(
    "--name",
    default="swe_env",
    show_default=True,
    metavar="NAME",
    help="Name of the environment, in snake case.",
)
@click.option(
    "--requirement",
    "requirements",
    multiple=True,
    metavar="TEXT",
    help="Further package of the server, in pip's form. Repeatable.",
)
@click.option(
    "--wheels", is_flag=True, help="Put wheels of the packages of this environment into the folder."
)
@click.option("--base-image", metavar="IMAGE", help="Image to base the server's on; it needs Python and pip.")
def export(
    directory: Path,
    config: Path | None,
    name: str,
    requirements: tuple[str, ...],
    wheels: bool,
    base_image: str | None,
) -> None:
    """Write the environment server as a folder for `openenv push`, `openenv validate` and Docker.

    The files that the settings name, below the working directory, are copied.
    """
    import tempfile

    from swe_openenv.export.folder import write
    from swe_openenv.export.server import content_of_server

    with tempfile.TemporaryDirectory(prefix="swe-wheels-") as scratch:
        into = Path(scratch) if wheels else None
        content, notes = content_of_server(config, name, requirements, into, base_image)
        write(content, directory)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"wrote {counted(len(content), 'file')} to {directory}")
    click.echo(f"next: docker build -t {name} -f {directory}/server/Dockerfile {directory}")
