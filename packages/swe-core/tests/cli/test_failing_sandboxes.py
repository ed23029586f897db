"""`swe-core run` on sandboxes that fail and leak secrets: what is run again, and what is redacted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swe_core.cli import cli, main

from .leaking_sandboxes import ACCOUNT, BEGINNING

PLUGIN = str(Path(__file__).with_name("leaking_sandboxes.py"))
TOKEN = re.compile(rf"{BEGINNING}[0-9a-f]{{16}}|{ACCOUNT}")


@dataclass
class Program:
    """`swe-core` with a directory for runs, and a short one for scratch files and unix sockets."""

    path: Path
    scratch: Path

    @property
    def out(self) -> Path:
        return self.path / "run"

    @property
    def command(self) -> list[str]:
        chosen = ("-p", PLUGIN, "--sandbox", "leaking", "--agent", "telling", "--task", "demo__memofn-1")
        return ["run", *chosen, "--out", str(self.out)]

    def inside(self, *args: str, **env: str) -> Result:
        """In this process, which takes less time."""
        return CliRunner().invoke(cli, args, env={"TMPDIR": str(self.scratch), **env})


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with tempfile.TemporaryDirectory(prefix="swe-", dir="/tmp") as scratch:
        yield Program(tmp_path, Path(scratch))


@pytest.mark.slow
def test_output_has_no_secret_of_a_provider(program: Program) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "swe-core"), *program.command, "--sandbox-retries", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(program.scratch), "FAILS": "1"},
    )
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(program.out)): path for path in program.out.rglob("*") if path.is_file()}
    written = {name: path.read_text(errors="replace") for name, path in files.items()}
    written |= {"stdout": done.stdout, "stderr": done.stderr}
    assert [name for name, text in written.items() if TOKEN.search(text)] == []
    (folder,) = (program.out / "rollouts").iterdir()
    for name, said in {
        "run.json": "The account's token is [redacted].",
        "rollouts.jsonl": "the sandbox with the token [redacted] is gone",
        f"rollouts/{folder.name}/agent.log": "I am in [redacted]",
    }.items():
        assert said in written[name]
    for said in (
        "Note: The account's token is [redacted].",
        "INFO a sandbox with [redacted]",
        "WARNING demo__memofn-1-0: the sandbox with the token [redacted] is gone; it is run again",
    ):
        assert said in done.stderr
    note = "Note: The account's token"
    assert [
        (done.stdout + done.stderr).count(note),
        program.inside("report", str(program.out)).stdout.count(note),
    ] == [1, 1]
    said = "run again after the sandbox failed (the sandbox with the token [redacted] is gone)"
    assert said in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("sentence", r"swe-core: error: the service does not take the token \[redacted\]: get another one\n"),
        ("defect of reap", r"swe-core: error: the sandbox provider .*Leaking failed in reap\(\): "
         r"KeyError: '\[redacted\]' \(leaking_sandboxes\.py, line \d+\)\n"),
        ("defect of check_supported", r"Traceback[^\0]*KeyError: '\[redacted\]'\n"),
    ],
)  # fmt: skip
def test_error_that_ends_the_run_has_no_secret(
    program: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str, said: str
) -> None:
    """A sentence, a defect of a method, and the traceback of another."""
    monkeypatch.setenv("ENDS", ends)
    monkeypatch.setenv("TMPDIR", str(program.scratch))
    reap = ["sandboxes", "reap", "-p", PLUGIN, "--sandbox", "leaking"]
    commands = [program.command, reap] if ends == "sentence" else [program.command]
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["swe-core", *command])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert (end.value.code, out) == (1, "")
        assert re.fullmatch(said, err), err
        assert not TOKEN.search(err)
