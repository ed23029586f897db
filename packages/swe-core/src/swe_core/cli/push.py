"""`swe-core push`: push the rollouts of a run to a data set on the Hub."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from swe_core.cli.options import run_argument
from swe_core.errors import UsageError
from swe_core.system.plural import counted


@click.command()
@run_argument
@click.option("--to", metavar="OWNER/NAME", help="Data set to push to. [default: the run's --push-to]")
@click.option(
    "--public",
    is_flag=True,
    help="Create a public data set, or accept an existing public one.",
)
def push(directory: Path, to: str | None, public: bool) -> None:
    """Push the finished rollouts of RUN to a data set on the Hugging Face Hub.

    The command creates a missing data set, skips rollouts that are already there, and redacts secrets. The
    token comes from HF_TOKEN or `hf auth login`.

    Exit code: 1 when the Hub does not accept the rollouts now.
    """
    from pydantic import ValidationError

    from swe_core.hub.options import PushOptions
    from swe_core.hub.push import push_run
    from swe_core.rollout.run_directory import RunDirectory

    run = RunDirectory.open(directory)
    recorded = run.info.settings.get("push", {})
    name = to or recorded.get("to")
    if name is None:
        raise UsageError("the run has no data set to push to: give one with --to OWNER/NAME")
    try:
        private = not public and (to is not None or recorded.get("private", True))
        options = PushOptions(to=name, private=private)
    except ValidationError:
        raise UsageError(f"--to {name!r}: expected OWNER/NAME, such as your-name/rollouts") from None
    done = push_run(run, options)
    click.echo(
        f"pushed {done.new} of {counted(done.finished, 'finished rollout')}, "
        f"{counted(done.finished - done.new, 'was', 'were')} already there: "
        f"{done.url}"
    )
    left = [
        f"{count} {what}"
        for count, what in ((done.interrupted, "interrupted"), (done.unfinished, "not finished"))
        if count
    ]
    if left:
        resume = shlex.join(["swe-core", "run", "--resume", str(directory)])
        click.echo(f"not pushed: {', '.join(left)}; resume the run with `{resume}` and push again")
