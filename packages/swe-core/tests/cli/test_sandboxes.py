"""`swe-core sandboxes`: what is listed, and what is removed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from swe_core.builtin.local import state
from swe_core.cli import cli
from swe_core.errors import SandboxError

PLUGIN = """
from datetime import UTC, datetime, timedelta
import anyio.to_thread
import click
from swe_core import Component, SandboxEntry, hookimpl
from swe_core.errors import SandboxError

MADE = datetime.now(UTC) - timedelta(hours=2)
DETAILS = {"stage": "RUN\\x1b[31mNING", "label": "[bold]x"}
FOUND = [
    SandboxEntry("newer", "unknown", "python:3.12", "cpu-basic", MADE + timedelta(hours=1)),
    SandboxEntry("older", "gone", flavor="cpu-upgrade", created=MADE, details=DETAILS),
    SandboxEntry("timeless", "alive"),
]

class Closed:
    def open(self, spec): raise SandboxError("it opens none")
    def notes(self): return []

class Provider(Closed):
    async def list(self): return FOUND
    async def reap(self): return 1

class Down(Closed):
    async def list(self): raise SandboxError("the service at 'there' does not answer: try again later")
    reap = list

class Slow(Closed):
    async def list(self):
        await anyio.to_thread.run_sync(click.said.wait, 60)
        return []
    async def reap(self): return len(await self.list())

@hookimpl
def swe_sandboxes():
    return [
        Component("billed", lambda config: Provider()),
        Component("down", lambda config: Down()),
        Component("slow", lambda config: Slow()),
    ]
"""

KILLED = """
import os, signal
from swe_core.builtin.local import state
state.create([], "left")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No other test's sandboxes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("SWE_PLUGINS", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "plugin.py").write_text(PLUGIN)
    return tmp_path


def sandboxes(*args: str) -> Result:
    return CliRunner().invoke(cli, ["sandboxes", *args], catch_exceptions=False)


def test_reap_removes_sandboxes_of_dead_runs_only() -> None:
    assert sandboxes("list").stdout == "There are no sandboxes.\n"
    assert json.loads(sandboxes("list", "--json").stdout) == []
    state.create([], "mine")
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    found = {entry["id"]: entry for entry in json.loads(sandboxes("list", "--json").stdout)}
    assert {name: entry["owner"] for name, entry in found.items()} == {"mine": "alive", "left": "gone"}
    assert found["left"]["details"] == {"directory": str(state.root() / "left")}
    assert "Dead runs left 1 of 2" in sandboxes("list").stdout
    assert json.loads(sandboxes("reap", "--json").stdout) == {"removed": 1}
    assert [entry["id"] for entry in json.loads(sandboxes("list", "--json").stdout)] == ["mine"]
    assert sandboxes("reap").stdout == "Removed 0 sandboxes.\n"


def test_list_prints_a_safe_table_oldest_first(own_directory: Path) -> None:
    """Text of a service cannot colour the terminal."""
    done = sandboxes("list", "-p", str(own_directory / "plugin.py"), "--sandbox", "billed")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["sandbox", "run", "age", "image", "flavor", "details"]
    assert rows[1] == ["timeless", "alive"]
    assert (rows[2][0], rows[2][1], rows[2][3]) == ("older", "gone", "cpu-upgrade")
    assert rows[2][2].startswith("2:00:0")
    assert " ".join(rows[2][4:]) == "stage RUNNING, label [bold]x"
    assert " ".join(rows[3][:4]) == "newer not from here"
    assert rows[3][-2:] == ["python:3.12", "cpu-basic"]
    assert "\x1b[31m" not in done.stdout
    done = sandboxes("reap", "-p", str(own_directory / "plugin.py"), "--sandbox", "billed")
    assert done.stdout == "Removed 1 sandbox.\n"


@pytest.mark.parametrize("command", ["list", "reap"])
def test_slow_service_is_said(own_directory: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """The slow provider waits until the announcement."""
    echo, said = click.echo, threading.Event()
    plugin = ["-p", str(own_directory / "plugin.py")]

    def heard(*args: Any, **options: Any) -> None:
        echo(*args, **options)
        said.set()

    monkeypatch.setattr(click, "echo", heard)
    monkeypatch.setattr(click, "said", said, raising=False)
    monkeypatch.setattr(importlib.import_module("swe_core.cli.sandboxes"), "_PATIENCE", 0.0)
    done = sandboxes(command, *plugin, "--sandbox", "slow", "--json")
    assert done.stderr == "no answer yet, still trying: press Ctrl-C to stop\n"
    assert json.loads(done.stdout) in ([], {"removed": 0})
    with pytest.raises(SandboxError, match="'there' does not answer"):
        sandboxes(command, *plugin, "--sandbox", "down")
