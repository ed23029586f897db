"""`swe-core run` on sandboxes that fail and leak secrets: what is run again, and what is redacted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from swe_core.cli import cli, main

from .leaking_sandboxes import ACCOUNT, BEGINNING

PLUGIN = str(Path(__file__).with_name("leaking_sandboxes.py"))
TOKEN = re.compile(rf"{BEGINNING}[0-9a-f]{{16}}|{ACCOUNT}")


RUN = ["run", "-p", PLUGIN, "--sandbox", "leaking", "--agent", "telling", "--task", "demo__memofn-1", "--out"]


@pytest.fixture(autouse=True)
def _scratch(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(scratch))


@pytest.mark.slow
def test_output_has_no_secret_of_a_provider(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "swe-core"), *RUN, str(out), "--sandbox-retries", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FAILS": "1"},
    )
    assert done.returncode == 0, done.stderr
    written = {"stdout": done.stdout, "stderr": done.stderr}
    for path in filter(Path.is_file, out.rglob("*")):
        written[str(path.relative_to(out))] = path.read_text(errors="replace")
    assert [name for name, text in written.items() if TOKEN.search(text)] == []
    (folder,) = (out / "rollouts").iterdir()
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
    report = CliRunner().invoke(cli, ["report", str(out)]).stdout
    assert ((done.stdout + done.stderr).count(note), report.count(note)) == (1, 1)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str, said: str
) -> None:
    """A sentence, a defect of a method, and the traceback of another."""
    monkeypatch.setenv("ENDS", ends)
    reap = ["sandboxes", "reap", "-p", PLUGIN, "--sandbox", "leaking"]
    run = [*RUN, str(tmp_path / "run")]
    for command in [run, reap] if ends == "sentence" else [run]:
        monkeypatch.setattr(sys, "argv", ["swe-core", *command])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert (end.value.code, out) == (1, "")
        assert re.fullmatch(said, err), err
        assert not TOKEN.search(err)
