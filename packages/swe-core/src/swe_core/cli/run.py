"""`swe-core run`: run an agent on tasks and grade its patches on the host."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from swe_core.api.component import RunOption
from swe_core.cli.options import (
    RunPath,
    given,
    plugin_options,
    run_directory,
    settings_options,
    task_options,
)
from swe_core.cli.sections import SectionedCommand
from swe_core.errors import ConfigError, RunStopped, UsageError
from swe_core.plugins.manager import Plugin, PluginSet
from swe_core.run.components import load_plugins
from swe_core.run.settings import Settings, load_settings
from swe_core.system.plural import counted
from swe_core.system.redaction import RedactingFormatter, Redactor, redaction_scope

if TYPE_CHECKING:
    from rich.console import Console

    from swe_core.api.records import Outcome
    from swe_core.api.rollout_request import Observer, RolloutRequest
    from swe_core.api.worker import RolloutWorker
    from swe_core.cli.progress import Display
    from swe_core.rollout.run_directory import RunDirectory
    from swe_core.run.execute import RunResult
    from swe_core.run.plan import Plan


SECTIONS = {
    "Tasks": (
        *("tasks", "split", "filter", "skip_invalid", "only"),
        *("verified", "image_map", "shuffle", "limit"),
    ),
    "Components": ("plugins", "extra_plugins", "agent", "sandbox", "engine", "grader", "worker"),
    "Machines": ("executor", "workers", "address"),
    "Model": ("model", "engine_url", "recording", "record", "mode", "agent_key_env"),
    "Amounts and limits": ("attempts", "concurrency", "sandbox_retries", "max_errors", "network"),
    "Settings": ("config", "sets"),
    "Output": ("out", "resume", "retry_errors", "dry_run", "push_to", "as_json", "verbose"),
}
"""Headings of the options in the help."""


@click.command(cls=SectionedCommand, sections=SECTIONS)
@plugin_options
@task_options
@click.option("--agent", metavar="NAME", help="Coding agent. [default: mini]")
@click.option("--sandbox", metavar="NAME", help="Sandbox provider. [default: local]")
@click.option(
    "--engine",
    metavar="NAME",
    help="Engine that answers LLM calls. [default: openai; replay where the tasks "
    "have recordings and neither --engine-url nor --model is given]",
)
@click.option(
    "--engine-url",
    multiple=True,
    metavar="URL",
    callback=lambda _ctx, _param, urls: ",".join(urls) or None,
    help="Base URL of the engine, ending in /v1; for vllm repeatable. [default for openai: that of the "
    "provider in --model]",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Model at the engine's URL; for openai without one, such as gpt-5.5, anthropic/NAME or ollama/NAME.",
)
@click.option(
    "--recording",
    type=click.Path(path_type=Path),
    help="File of recorded replies that the engine replay answers from.",
)
@click.option("--record", type=click.Path(path_type=Path), help="File that records the replies of this run.")
@click.option("--grader", metavar="NAME", help="Grader that scores the patch. [default: swe]")
@click.option("--worker", metavar="NAME", help="Worker that consumes finished rollouts. [default: collect]")
@click.option(
    "--executor",
    metavar="NAME",
    help="Where rollouts run: local (in this process) or ray. [default: local]",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Nodes that the executor starts; 0 starts none and needs --address.",
)
@click.option("--address", metavar="ADDRESS", help="Cluster that the executor joins, such as auto for ray.")
@click.option("--attempts", type=click.IntRange(min=1), metavar="K", help="Rollouts per task. [default: 1]")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rollouts that run at the same time. [default: 4]",
)
@click.option(
    "--sandbox-retries",
    type=click.IntRange(min=0),
    metavar="N",
    help="Retries of a rollout whose sandbox failed. [default: 0]",
)
@click.option(
    "--max-errors",
    type=click.IntRange(min=0),
    metavar="N",
    help="Equal errors without a verdict between them that end the run; 0 is no limit. [default: 10, or "
    "twice the concurrency]",
)
@click.option(
    "--network",
    metavar="POLICY",
    help="Network of the agent's sandbox: llm (only its LLM endpoint), none or full. [default: llm]",
)
@click.option(
    "--mode",
    metavar="MODE",
    help="Route of LLM calls: gate (through the host) or black-box (from the sandbox). [default: gate]",
)
@click.option(
    "--agent-key-env", metavar="VAR", help="Environment variable whose key the agent gets in black-box mode."
)
@click.option(
    "--push-to",
    metavar="OWNER/NAME",
    help="Private data set on the Hub that receives finished rollouts.",
)
@settings_options
@click.option("--out", type=click.Path(path_type=Path), help="Run directory. [default: runs/TIME-AGENT]")
@click.option("--resume", type=RunPath(), metavar="RUN", help="Resume the run RUN, such as latest.")
@click.option(
    "--retry-errors", is_flag=True, help="With --resume, also run rollouts again that ended in an error."
)
@click.option("--dry-run", is_flag=True, help="Print what would run. Open no sandbox and write no file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Log more to stderr.")
def run(
    network: str | None,
    config: Path | None,
    sets: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    retry_errors: bool,
    dry_run: bool,
    push_to: str | None,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Run an agent on tasks in sandboxes and grade its patches on the host.

    Exit code: 0 when every rollout has a verdict or training is complete; 1 when a rollout of an evaluation
    ended in an error or sampled tokens are unaccounted for.
    """
    options = option_tables({**options, "network": network, "push_to": push_to})
    begun: RunDirectory | None = None
    if resume is not None:
        begun = click.get_current_context().with_resource(run_directory(resume))
        resume = begun.path
    overrides = click.get_current_context().meta.get(OVERRIDES, {})
    settings = _settings(config, begun, sets, options, overrides)
    if resume is not None and out is not None:
        raise UsageError("--resume and --out exclude each other: a resumed run keeps its directory")
    if retry_errors and resume is None:
        raise UsageError("--retry-errors needs --resume RUN, the run with the errors")
    if dry_run and as_json:
        raise UsageError("--json prints the summary of a run, and --dry-run runs nothing: leave one out")
    plugin_set = load_plugins(settings.run)
    # Heavy modules, imported after the input is checked.
    from swe_core.api.worker import RolloutWorker
    from swe_core.cli.progress import Display
    from swe_core.cli.report import show
    from swe_core.rollout.run_directory import RUN_FILE, RunDirectory
    from swe_core.run.launcher import Launch, Launcher
    from swe_core.run.plan import plan_run
    from swe_core.run.verified_tasks import image_ids, other_images

    plan = plan_run(settings, plugin_set)
    verified = image_ids(settings.run.verified) if settings.run.verified is not None else {}
    worker: object = plan.worker.create()
    if plan.agent.dialect is None and not isinstance(worker, Launcher):
        _refuse_model_options(plan.agent.name, options["run"])
    console = Display()
    _log_to(console, plugin_set, verbose, click.get_current_context().with_resource(redaction_scope()))
    directory = resume or out or _default_directory(plan.agent.name)
    trains = isinstance(worker, Launcher)
    said: list[str] = []
    stopped: RunStopped | None = None
    launch = Launch(plan.settings, directory, resume is not None)
    if isinstance(worker, Launcher):
        if retry_errors:
            raise UsageError(f"--retry-errors is for evaluations, and the worker {plan.worker.name!r} trains")
        if settings.run.max_errors is not None:
            raise UsageError(f"--max-errors is for evaluations, and the worker {plan.worker.name!r} trains")
    again: list[Outcome] | None = None
    if begun is not None and not isinstance(worker, Launcher):
        from swe_core.run.resume import check_same

        check_same(begun, plan)
        again = ["cancelled", *(("error",) if retry_errors else ())]
    if dry_run:
        from swe_core.cli.dry_run import describe

        click.echo(describe(plan, directory, begun, again or (), trains=trains))
        if isinstance(worker, Launcher):
            worker.preview(launch, click.echo)
        return
    if isinstance(worker, Launcher):
        interrupted = worker.launch(launch)
    else:
        collector = cast(RolloutWorker, worker)
        result = _execute(plan, plugin_set, collector, directory, console, again, said)
        interrupted, stopped = result.cancelled, result.stopped
    if interrupted and not (directory / RUN_FILE).exists():
        click.echo("swe-core: interrupted before a rollout started", err=True)
        raise click.exceptions.Exit(130)
    run = RunDirectory.open(directory)
    balanced = show(run, as_json, "interrupted" if interrupted or stopped else None, said)
    for note in other_images(verified, run.rollouts()):
        console.print(f"Note: {note}", style="yellow", markup=False)
    if interrupted:
        if as_json:
            command = shlex.join(["swe-core", "run", "--resume", str(directory)])
            click.echo(f"swe-core: interrupted: `{command}` runs the rest", err=True)
        raise click.exceptions.Exit(130)
    if stopped is not None:
        raise stopped
    if not balanced or (not trains and any(rollout.outcome == "error" for rollout in run.rollouts())):
        raise click.exceptions.Exit(1)


def option_tables(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return section → setting → value of the options that set settings.

    Args:
        options: Parameter of `run` → value.
    """
    left = dict(options)
    network, push_to = left.pop("network"), left.pop("push_to")
    return {
        "run": given(left),
        "resources": {"network": network},
        "push": {"to": push_to},
    }


_OF_MODEL = ("model", "engine", "engine_url", "recording", "record", "mode", "agent_key_env")


def _refuse_model_options(agent: str, options: Mapping[str, Any]) -> None:
    """Refuse options that an agent without LLM calls would ignore."""
    ignored = [f"--{name.replace('_', '-')}" for name in _OF_MODEL if options[name] is not None]
    if ignored:
        raise UsageError(
            f"the agent {agent!r} makes no LLM calls: leave out {' and '.join(ignored)}, or choose another "
            "--agent"
        )


OVERRIDES = "swe_core.overrides"
"""Key in click's context for the settings that plugins' options set."""


def add_options(command: click.Command, plugins: Iterable[Plugin]) -> list[str]:
    """Add plugins' options to `run`.

    Returns:
        One sentence for each option that is left out because its name is taken. A plugin must not break the
        command.
    """
    taken = {"--help", *(flag for param in command.params for flag in param.opts)}
    problems: list[str] = []
    for plugin in plugins:
        for option in plugin.options:
            if option.flag in taken:
                problems.append(
                    f"the option {option.flag!r} of the plugin {plugin.name!r} is left out, because "
                    "`swe-core run` has an option of that name: use "
                    f"--set {option.setting}={option.metavar} instead"
                )
                continue
            taken.add(option.flag)
            command.params.append(_shorthand(option))
    return problems


def _shorthand(option: RunOption) -> click.Option:
    def keep(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(OVERRIDES, {})[option.setting] = value

    return click.Option(
        [option.flag], help=option.help, metavar=option.metavar, callback=keep, expose_value=False
    )


def _settings(
    config: Path | None,
    begun: RunDirectory | None,
    sets: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    overrides: Mapping[str, str],
) -> Settings:
    """Return the settings of the command line, on top of the recorded ones of a resumed run."""
    if begun is None:
        return load_settings(config, sets, options, overrides=overrides)
    if config is not None:
        raise ConfigError("--resume and --config exclude each other: a resumed run keeps its settings")
    recorded = begun.info.settings
    if options["run"]["executor"] is not None:  # the others are those of the executor of before
        recorded = {**recorded, "run": {**recorded["run"], "workers": None, "address": None}}
    return load_settings(None, sets, options, recorded, overrides)


def _execute(
    plan: Plan,
    plugins: PluginSet,
    worker: RolloutWorker,
    directory: Path,
    console: Display,
    again: Collection[Outcome] | None,
    said: list[str],
) -> RunResult:
    """Run all rollouts in this process.

    Args:
        again: With a resumed run, the outcomes of rollouts to run again; None starts a new run.
        said: Receives the notes that the display prints.
    """
    from swe_core.cli.progress import LiveProgress, PlainProgress
    from swe_core.hub.extensions import hub_extensions
    from swe_core.run.execute import execute
    from swe_core.system.event_loop import run as run_in_loop

    with ExitStack() as stack:

        def observe(requests: Sequence[RolloutRequest], notes: Sequence[str]) -> Observer:
            what = f"{counted(len(requests), 'rollout')}{' left' if again else ''}"
            if requests:
                first = requests[0]
                what += f": agent {first.agent}, sandbox {first.sandbox}, engine {first.engine}"
            console.print(f"{what}; {directory}", markup=False)
            for note in notes:
                console.print(f"Note: {note}", style="yellow", markup=False)
            if again is None:  # on resume, notes about the results are among them
                said.extend(notes)
            if not console.is_terminal:
                return PlainProgress(requests)
            display = LiveProgress(requests, console)
            stack.enter_context(display.live)
            return display

        start = partial(
            execute,
            resume=again is not None,
            again=again or (),
            extensions=hub_extensions(plan.settings.push),
        )
        return run_in_loop(start, plan, plugins, directory, observe, worker)


def _log_to(console: Console, plugins: PluginSet, verbose: bool, redactor: Redactor) -> None:
    """Log swe-core and the plugins to `console`, and only warnings of libraries."""
    from rich.logging import RichHandler

    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(RedactingFormatter(redactor, "%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(
            RedactingFormatter(redactor, "%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    modules = (getattr(module, "__name__", "") for module in plugins.manager.get_plugins())
    for package in {"swe_core", *(name.partition(".")[0] for name in modules)}:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)


def _default_directory(agent: str) -> Path:
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{agent}"
    for number in range(1, 1000):
        path = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        if not path.exists():
            return path
    raise UsageError(f"{str(stem)!r} and its numbered successors already exist: give a directory with --out")
