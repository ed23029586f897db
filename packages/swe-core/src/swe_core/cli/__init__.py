"""The command line: one module per command, imported when the command runs."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable

import click

from swe_core.errors import SweError, TaskError, UsageError, sentence
from swe_core.system.printable import printable
from swe_core.system.redaction import Redactor, redaction_scope

_COMMANDS = {
    "run": ("swe_core.cli.run:run", "Run an agent on tasks and grade its patches."),
    "capture": ("swe_core.cli.capture:capture", "Record the exact tokens of agents that you start yourself."),
    "runs": ("swe_core.cli.runs:runs", "List runs, the newest last."),
    "report": ("swe_core.cli.report:report", "Print the results of a run: pass@k, times, errors, tampering."),
    "show": ("swe_core.cli.show:show", "Print one rollout: transcript, patch, tests."),
    "top": ("swe_core.cli.top:top", "Show the nodes of a run while it runs: slots, rollouts, tokens/s."),
    "view": ("swe_core.cli.view:view", "Open runs in a browser: rollouts, tokens, chains, groups."),
    "export": ("swe_core.cli.export:export", "Write the data of a run in a common format."),
    "regrade": ("swe_core.cli.regrade:regrade", "Grade the patches of a run again and compare the verdicts."),
    "drift": ("swe_core.cli.drift:drift", "Compare training rows of recorded conversations for a tokenizer."),
    "push": ("swe_core.cli.push:push", "Push the finished rollouts of a run to a data set on the Hub."),
    "tasks": ("swe_core.cli.tasks:tasks", "List, show and verify tasks."),
    "sandboxes": ("swe_core.cli.sandboxes:sandboxes", "List sandboxes and remove those of dead runs."),
    "doctor": ("swe_core.cli.doctor.command:doctor", "Check what this machine can run and what it lacks."),
    "plugins": ("swe_core.cli.plugins:plugins", "List plugins, their components and their errors."),
    "config": ("swe_core.cli.config:config", "Show the effective settings and where each comes from."),
}


class _LazyGroup(click.Group):
    """A group that imports a subcommand's module when the subcommand runs. Plugins add subcommands."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came
        self._plugins_asked: set[str | None] = set()
        self._options_asked: set[str | None] = set()
        self._with_options: set[str] = set()

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._ask_plugins()
        return [*_COMMANDS, *sorted(set(super().list_commands(ctx)) - _COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, attribute = _COMMANDS[cmd_name][0].split(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            if cmd_name == "run":
                self._ask_for_options(command)
            return command
        self._ask_plugins()
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, but name the plugin of a missing command.

        Raises:
            PluginError: The command's plugin is absent, broken or not allowed.
        """
        from swe_core.plugins.builtins import KNOWN_COMMANDS

        owner, _ = KNOWN_COMMANDS.get(args[0], (None, ""))
        if owner is not None and self.get_command(ctx, args[0]) is None:
            from swe_core.plugins.manager import PluginSet, allow_list

            PluginSet((owner,), allow=allow_list(os.environ))  # raises the PluginError
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands as click does, without importing the built-in ones and known plugins."""
        from swe_core.plugins.builtins import KNOWN_COMMANDS, KNOWN_DISTRIBUTIONS

        rows = [(name, text) for name, (_, text) in _COMMANDS.items()]
        allowed = _allowed_plugins()
        if allowed <= KNOWN_DISTRIBUTIONS.keys():
            rows += [(name, text) for name, (plugin, text) in KNOWN_COMMANDS.items() if plugin in allowed]
        else:
            for name in self.list_commands(ctx):
                command = self.commands.get(name)
                if command is not None:
                    rows.append((name, command.get_short_help_str(_UNWRAPPED)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _ask_plugins(self) -> None:
        allowed = os.environ.get("SWE_PLUGINS")
        if allowed in self._plugins_asked:
            return
        self._plugins_asked.add(allowed)
        from swe_core.plugins.manager import PluginSet, allow_list

        for problem in PluginSet(allow=allow_list(os.environ)).notify("swe_commands", cli=self):
            click.echo(f"swe-core: {printable(problem)}", err=True)

    def _ask_for_options(self, run: click.Command) -> None:
        allowed = os.environ.get("SWE_PLUGINS")
        if allowed in self._options_asked:
            return
        self._options_asked.add(allowed)
        from swe_core.cli.run import add_options
        from swe_core.plugins.manager import PluginSet, allow_list

        plugins = PluginSet(allow=allow_list(os.environ)).plugins
        new = [plugin for name, plugin in plugins.items() if name not in self._with_options]
        self._with_options.update(plugins)
        for problem in add_options(run, new):
            click.echo(f"swe-core: {printable(problem)}", err=True)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="swe-core", prog_name="swe-core")
def cli() -> None:
    """Train and evaluate models inside unmodified coding agents."""


def main() -> None:
    """Run the command line. A `SweError` is one sentence on stderr, exit code 2 for wrong input, else 1."""
    with redaction_scope() as redactor:
        try:
            _main(redactor)
        except Exception:  # a bug: print the traceback without secrets
            click.echo(redactor.text(printable(redactor.text(traceback.format_exc()))), nl=False, err=True)
            sys.exit(1)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on it would print a traceback


def _main(redactor: Redactor) -> None:
    try:
        # click returns the code of its Exit exception
        code = cli.main(
            prog_name="swe-core", standalone_mode=False, terminal_width=None if _is_narrow() else _UNWRAPPED
        )
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"swe-core: error: {redactor.text(printable(redactor.text(_said(error))))}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("swe-core: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader has exited (`| head`): do not flush the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest would fail too
        click.echo(f"swe-core: error: the output cannot be written: {error.strerror}", err=True)
        sys.exit(1)
    except SweError as error:
        said = "\n".join(_sentences(error))
        click.echo(f"swe-core: error: {redactor.text(printable(redactor.text(said)))}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _sentences(error: SweError) -> list[str]:
    """Return the text of an error as one line, or as one for each way in which rows are invalid."""
    if not isinstance(error, TaskError):
        return [sentence(error)]
    return [sentence(TaskError(line)) for line in str(error).split("\n") if line.strip()] or [sentence(error)]


_UNWRAPPED = 10_000
"""Columns of a help text whose reader is a program."""


def _allowed_plugins() -> set[str]:
    """Return the names of the installed plugins that `SWE_PLUGINS` allows. It loads none."""
    from importlib.metadata import entry_points

    installed = {point.name for point in entry_points(group="swe_core")}
    allowed = os.environ.get("SWE_PLUGINS")
    return installed if allowed is None else installed & {name.strip() for name in allowed.split(",")}


def _is_narrow() -> bool:
    """Return whether help is for a terminal, or for the width that COLUMNS asks for."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def _said(error: click.ClickException) -> str:
    """Return an error of click as one sentence that says what to do."""
    from swe_core.plugins.builtins import REMOVED

    text = " ".join(error.format_message().split()).rstrip(".")
    text = (text[:1].lower() + text[1:]).replace("a valid integer range", "a whole number")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return text
    command = context.command
    hint = f"see `{context.command_path} --help`"
    if isinstance(error, click.NoSuchOption):
        if error.option_name in REMOVED:
            return f"the option {error.option_name} no longer exists: {REMOVED[error.option_name]}"
        known = [
            flag for param in command.get_params(context) for flag in (*param.opts, *param.secondary_opts)
        ]
        text = f"no such option {error.option_name!r}"
        hint = _nearest(error.option_name, known) or hint
    elif isinstance(command, click.Group) and (unknown := _NO_COMMAND.fullmatch(text)):
        if unknown[1] in REMOVED:
            return f"the command {unknown[1]!r} no longer exists: {REMOVED[unknown[1]]}"
        commands = command.list_commands(context)
        text = f"no such command {unknown[1]!r}"
        hint = _nearest(unknown[1], commands) or f"there are: {', '.join(commands)}"
    return f"{text}; {hint}"


_NO_COMMAND = re.compile(r"no such command '(.*?)'(?:\..*)?")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else None
