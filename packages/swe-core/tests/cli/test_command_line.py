"""The command line as a whole: interrupts, help on a terminal and in a pipe. Its errors: bad_inputs.toml."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

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


def test_group_without_a_command_prints_its_help(ran: Ran) -> None:
    for args in ((), ("tasks",)):
        code, _, err = ran(*args)
        assert code == 2
        assert err.startswith("Usage: swe-core")


def test_interrupt_is_named(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", Mock(side_effect=KeyboardInterrupt))
    assert ran("runs") == (130, "", "swe-core: interrupted\n")


def test_invalid_rows_are_told_by_kind(ran: Ran, tmp_path: Path) -> None:
    """And `--skip-invalid` and `--task` arrive at their source."""
    good = {
        **dict.fromkeys(("patch", "test_patch"), ""),
        **{"instance_id": "a", "repo": "o/r", "base_commit": "a" * 40, "problem_statement": "It fails."},
        **{"FAIL_TO_PASS": ["t"], "PASS_TO_PASS": [], "image_name": "i", "test_command": "pytest"},
    }
    rows = [good, {**good, "instance_id": "b", "problem_statement": ""}, {"instance_id": "c"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    listing = ("tasks", "list", "--tasks", str(file))
    code, _, err = ran(*listing)
    head, first, second, end = err.split("\n")
    assert (code, end) == (2, "")
    assert "2 of 3 rows are invalid; leave them out with --skip-invalid or --filter" in head
    assert first.startswith("1 of 3 rows, line 2 ('b'): the column 'problem_statement' is empty")
    assert second.startswith("1 of 3 rows, line 3 ('c'): the column 'repo' is missing")
    for choice in (("--skip-invalid",), ("--task", "a"), ("--set", "tasks.rows.skip_invalid=true")):
        code, out, _ = ran(*listing, *choice)
        assert (code, out.splitlines()[-1]) == (0, "1 task")


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
