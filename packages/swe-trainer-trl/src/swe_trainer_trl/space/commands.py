"""The commands `swe-core space` and `swe-core job`. Slow imports happen only when a command runs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from swe_core.errors import UsageError

if TYPE_CHECKING:
    from swe_trainer_trl.space.deployment import Deployment, Target
    from swe_trainer_trl.space.hub import Hub

F = TypeVar("F", bound=Callable[..., Any])


def _deployment_options(command: F) -> F:
    options = (
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            required=True,
            help="TOML file with the settings of the run.",
        ),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY=VALUE",
            help="Setting, such as limits.agent=600. Repeatable.",
        ),
        click.option(
            "--include",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="File or folder that the run reads and its settings do not name. Repeatable.",
        ),
        click.option(
            "--secret",
            "secrets",
            multiple=True,
            metavar="NAME[=VARIABLE]",
            help="Secret of the run, from a local environment variable. Repeatable.",
        ),
        click.option(
            "--env",
            "variables",
            multiple=True,
            metavar="NAME=VALUE",
            help="Environment variable that is no secret. Repeatable.",
        ),
        click.option(
            "--requirement",
            "requirements",
            multiple=True,
            metavar="PACKAGE",
            help="Further package, as pip takes it. Repeatable.",
        ),
        click.option(
            "--base-image",
            metavar="IMAGE",
            help="Image with Python 3.11 or newer, git and a C compiler.",
        ),
        click.option(
            "--dry-run",
            "folder",
            is_flag=False,
            flag_value="",
            metavar="[DIR]",
            help="Print the plan and write its files into DIR; create nothing. [default: ./NAME]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _repo_id(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    from swe_trainer_trl.space.deployment import REPO_ID

    if not REPO_ID.fullmatch(value):
        raise UsageError(f"{value!r} is no Space: expected OWNER/NAME")
    return value


_existing = click.argument("repo_id", metavar="OWNER/NAME", callback=_repo_id)


@click.group()
def space() -> None:
    """Train on a Hugging Face Space."""


@space.command()
@click.option("--repo-id", required=True, metavar="OWNER/NAME", help="Space to create.")
@click.option(
    "--hardware", default="cpu-basic", show_default=True, metavar="NAME", help="Hardware of the Space."
)
@click.option("--public", is_flag=True, help="Create a public Space.")
@_deployment_options
def deploy(folder: str | None, **options: Any) -> None:
    """Deploy a run to a new Space, with the packages of this environment.

    The token comes from HF_TOKEN or `hf auth login`; `--secret HF_TOKEN=VARIABLE` gives the Space another
    token. The Space pauses itself when the run ends.
    """
    with tempfile.TemporaryDirectory(prefix="swe-wheels-") as scratch:
        deployment = _deployment("Space", Path(scratch), options, ask=folder is None)
        if folder is not None:
            _dry_run(deployment, folder)
            return
        url = _hub().deploy(deployment, os.environ)
    repo_id = deployment.repo_id
    click.echo(f"{url}\nIt is built now: swe-core space logs {repo_id} --build --follow")


@space.command()
@_existing
def status(repo_id: str) -> None:
    """Print the state of a Space and the progress of its run.

    Exit code: 1 when the build or the run failed.
    """
    known = _hub().status(repo_id)
    click.echo(f"stage: {known.stage}, hardware: {known.hardware}")
    state = known.state
    if state is not None:
        step = "" if state.step is None else f", step {state.step}"
        resumed = ", resumed" if state.resumed else ""
        click.echo("\n".join([f"run: {state.phase}{step}{resumed}", *state.lines]))
    elif known.silent:
        click.echo(f"run: not known, {known.silent}")
    failed = known.stage.endswith("_ERROR") or (state is not None and state.phase == "failed")
    if failed:
        raise click.exceptions.Exit(1)


@space.command()
@_existing
@click.option("--build", is_flag=True, help="Print the build log.")
@click.option("--follow", is_flag=True, help="Print new lines until Ctrl-C.")
def logs(repo_id: str, build: bool, follow: bool) -> None:
    """Print the log of a Space."""
    from swe_core.system.printable import printable

    for line in _hub().logs(repo_id, build=build, follow=follow):
        click.echo(printable(line), nl=False)


@space.command()
@_existing
def pause(repo_id: str) -> None:
    """Pause a Space to stop its costs. Without persistent storage its files are lost."""
    _hub().pause(repo_id)
    click.echo(f"{repo_id} is paused")


@space.command()
@_existing
def restart(repo_id: str) -> None:
    """Restart a Space and resume its run."""
    _hub().restart(repo_id)
    click.echo(f"{repo_id} is restarting")


@space.command()
@_existing
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
def delete(repo_id: str, yes: bool) -> None:
    """Delete a Space and its files."""
    if not yes:
        click.confirm(f"Delete the Space {repo_id} and all that is on it?", abort=True)
    _hub().delete(repo_id)
    click.echo(f"{repo_id} is deleted")


def _time(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[0-9]+|[0-9]+(\.[0-9]+)?[smhd]", value):  # the forms that the client accepts
        raise UsageError(f"--timeout {value!r}: expected a number of seconds, or a time such as 90m or 6h")
    return value


@click.group()
def job() -> None:
    """Train as a Hugging Face Job."""


@job.command("run")
@click.option(
    "--repo-id",
    required=True,
    metavar="OWNER/NAME",
    help="Data set to create for the files of the Job.",
)
@click.option(
    "--hardware", default="cpu-basic", show_default=True, metavar="NAME", help="Hardware of the Job."
)
@click.option(
    "--timeout",
    default="24h",
    show_default=True,
    metavar="TIME",
    callback=_time,
    help="Maximum duration, such as 90m or 6h.",
)
@_deployment_options
def run_job(folder: str | None, timeout: str, **options: Any) -> None:
    """Run as a Job what `swe-core space deploy` runs on a Space. The Job ends with the run and keeps only
    what the run pushes."""
    with tempfile.TemporaryDirectory(prefix="swe-wheels-") as scratch:
        deployment = _deployment("Job", Path(scratch), {"public": False, **options}, ask=folder is None)
        if folder is not None:
            _dry_run(deployment, folder)
            return
        job_id, url = _hub().run_job(deployment, os.environ, timeout)
    click.echo(f"{url}\nIts log: hf jobs logs {job_id}")


def _deployment(target: Target, scratch: Path, options: dict[str, Any], *, ask: bool) -> Deployment:
    from importlib.metadata import version

    from swe_core.run.settings import load_settings
    from swe_trainer_trl.space.deployment import BASE_IMAGE, Request, check, plan
    from swe_trainer_trl.space.inputs import input_files
    from swe_trainer_trl.space.preflight import check_run
    from swe_trainer_trl.space.wheels import installed, make_wheels

    include, public = options.pop("include"), options.pop("public")
    options["base_image"] = options["base_image"] or BASE_IMAGE
    settings = load_settings(options["config"], options["sets"])
    request = Request(target=target, private=not public, backup=settings.push.to, **options)
    check(request)
    inputs = input_files(request.config, settings, include)
    needs = check_run(request, settings, ask=ask)
    return plan(request, inputs, make_wheels(installed(settings.run.plugins), scratch), version("trl"), needs)


def _dry_run(deployment: Deployment, folder: str) -> None:
    from swe_trainer_trl.space.deployment import describe, write
    from swe_trainer_trl.space.hardware import require_gpus
    from swe_trainer_trl.space.leaks import refuse_leaks

    require_gpus(deployment.hardware, deployment.needs.training)
    refuse_leaks(deployment, _hub().secret_values(deployment, os.environ), os.environ)
    directory = Path(folder or deployment.repo_id.partition("/")[2])
    write(deployment, directory)
    click.echo(f"{describe(deployment)}\nNothing was created. Its files: {directory}")


def _hub() -> Hub:
    from swe_trainer_trl.space.hub import Hub

    return Hub()
