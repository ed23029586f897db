"""The command line as a whole: errors, suggestions, help on a terminal and in a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import click
import pytest
from rich.table import Table

from swe_core.cli import cli, main
from swe_core.cli.run import SECTIONS, run
from swe_core.system.safe_console import SafeConsole

Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ran:
    """Run `swe-core ARGS` in this process, with the built-in plugins only: exit code, stdout, stderr."""
    monkeypatch.setenv("SWE_PLUGINS", "")
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["swe-core", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("rn",), "no such command 'rn'; did you mean 'run'?"),
        (("reprt",), "no such command 'reprt'; did you mean 'report'?"),
        (("tasks", "lst"), "no such command 'lst'; did you mean 'list'?"),
        (("sandboxes", "xyz"), "no such command 'xyz'; there are: list, reap"),
        (("run", "--agnet", "pi"), "no such option '--agnet'; did you mean '--agent'?"),
        (("sandboxes", "list", "--jsn"), "no such option '--jsn'; did you mean '--json'?"),
        (("--xyzzy",), "no such option '--xyzzy'; see `swe-core --help`"),
        (("run", "--agent"), "option '--agent' requires an argument"),
        (
            ("run", "--attempts", "x"),
            "invalid value for '--attempts': 'x' is not a whole number; see `swe-core run --help`",
        ),
        (
            ("run", "--attempts", "0"),
            "invalid value for '--attempts': 0 is not in the range x>=1; see `swe-core run --help`",
        ),
        (("show",), "missing argument 'RUN'; see `swe-core show --help`"),
        (("drift", "x"), "missing option '--tokenizer'; see `swe-core drift --help`"),
        (("runs", ".", "b"), "got unexpected extra argument (b); see `swe-core runs --help`"),
        (("report", "x\x1b[2Jy"), "there is no run 'x\\x1b[2Jy'; "),
    ],
)
def test_every_usage_error_is_one_sentence_of_one_style(ran: Ran, args: tuple[str, ...], says: str) -> None:
    code, out, err = ran(*args)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"swe-core: error: {says}")


def test_unknown_command_without_a_similar_one_lists_all(ran: Ran) -> None:
    _, _, err = ran("xyzzy")
    assert err.startswith("swe-core: error: no such command 'xyzzy'; there are: run, runs, report, show, ")


@pytest.mark.parametrize("args", [(), ("tasks",)])
def test_group_without_a_command_prints_its_help(ran: Ran, args: tuple[str, ...]) -> None:
    code, _, err = ran(*args)
    assert code == 2
    assert err.startswith("Usage: swe-core")


def test_interrupt_is_named(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert ran("runs") == (130, "", "swe-core: interrupted\n")


def test_help_in_a_pipe_is_not_wrapped(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text, _ = ran("run", "--help")
    (line,) = (line for line in text.splitlines() if line.startswith("  --filter COLUMN=GLOB "))
    assert line.endswith("such as repo=getmoto/*. Repeatable; all must match.")
    monkeypatch.setenv("COLUMNS", "60")
    _, text, _ = ran("run", "--help")
    assert max(map(len, text.splitlines())) < 60


def test_help_of_run_has_each_option_under_one_heading(ran: Ran) -> None:
    own = [param.name for param in run.params if isinstance(param, click.Option) and param.expose_value]
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(str(name) for name in own)
    _, text, _ = ran("run", "--help")
    heads = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == [f"{heading}:" for heading in (*SECTIONS, "Other options")]
    for option in own:
        param = next(param for param in run.params if param.name == option)
        assert f"  {param.opts[-1]}" in text or f", {param.opts[-1]}" in text


def test_table_in_a_pipe_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    pipe = io.StringIO()
    table = Table("name", box=None)
    table.add_row("word " * 100)
    SafeConsole(file=pipe).print(table)
    assert len(pipe.getvalue().splitlines()) == 2
    narrow = io.StringIO()
    SafeConsole(file=narrow, width=40).print(table)
    assert len(narrow.getvalue().splitlines()) > 10
    monkeypatch.setenv("COLUMNS", "40")
    asked = io.StringIO()
    SafeConsole(file=asked).print(table)
    assert asked.getvalue() == narrow.getvalue()
