"""Wrong input as a table: each row is one call of the command line that must be refused. For authors.

`bad_inputs.toml` beside a test file has rows of this form:

    [[case]]
    run = "run --agent orakle"           # the arguments, as a shell splits them
    says = ["unknown agent 'orakle'"]    # words of the one sentence
    files = { "rows.jsonl" = "{}" }      # what lies in the current directory (default: nothing)
    env = { SWE_PLUGINS = "" }           # variables of the environment (default: none)
    code = 2                             # the exit code (default: 2)
    prints = true                        # it may print something first, as a dry run does (default: false)

and the test file runs them:

    @pytest.mark.parametrize("case", bad_inputs(__file__))
    def test_bad_input(case: BadInput, refuse: Callable[[BadInput], None]) -> None:
        refuse(case)
"""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class BadInput:
    """One row of the table."""

    run: str
    says: list[str]
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    code: int = 2
    prints: bool = False


def bad_inputs(test_file: str) -> list[Any]:
    """Return the rows of the `bad_inputs.toml` beside a test file, as pytest's parameters."""
    table = tomllib.loads(Path(test_file).with_name("bad_inputs.toml").read_text())
    return [pytest.param(BadInput(**row), id=row["run"][-100:]) for row in table["case"]]


@pytest.fixture
def refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[BadInput], None]:
    """Check a row: one sentence with its words, its exit code, no traceback, and no file written."""

    def check(case: BadInput) -> None:
        from swe_core.cli import main

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        for name, text in case.files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        for name, value in case.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["swe-core", *shlex.split(case.run)])
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert end.value.code == case.code, err
        assert case.prints or out == ""
        assert err.startswith("swe-core: error: ")
        assert err.count("\n") == 1, err
        missing = [words for words in case.says if words not in err]
        assert not missing, err
        assert sorted(tmp_path.rglob("*")) == before

    return check
