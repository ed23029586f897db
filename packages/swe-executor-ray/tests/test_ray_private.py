"""A cluster that a run starts on this host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENCE, wait_for, words

pytestmark = pytest.mark.slow


def start(tmp_path: Path, scratch: Path, name: str, *args: str) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-c", "from swe_core.cli import main; main()", "run", "--plugins", "ray", "--json"),
        *("--agent", "oracle", "--tasks", "demo", "--task", "demo__csvtidy-1", "--task", "demo__memofn-1"),
        *("--out", str(tmp_path / name), *args),
    ]
    places = {"TMPDIR": str(scratch), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **places}, stdout=pipe, stderr=pipe, text=True)


def processes(scratch: Path) -> list[bytes]:
    """The processes that have the name of this directory in their environment.

    Ray's agents are left out: they look for their raylet now and then, and end within a minute.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(scratch) in (path / "environ").read_bytes():
                found.append(words(path.name))
        except OSError:  # it is another user's, or ends
            continue
    return [line for line in found if b"Agent" not in line]


def records(out: Path) -> list[dict[str, Any]]:
    """The records of a run, without what differs from run to run."""
    lines = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    for line in lines:
        for varying in ("started_at", "seconds", "phases", "sandboxes", "node"):
            del line[varying]
        del line["grade"]["hashes"]["log"], line["grade"]["test_seconds"]  # the log has times
    return sorted(lines, key=lambda line: str(line["id"]))


@pytest.mark.long
def test_demo_resolves_as_in_one_process(tmp_path: Path, scratch: Path, local_sandbox: None) -> None:
    with start(tmp_path, scratch, "here") as process:
        process.communicate(timeout=PATIENCE)
    with start(tmp_path, scratch, "there", "--executor", "ray", "--workers", "2") as process:
        stdout, stderr = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["resolved"] == 2, stdout
    assert records(tmp_path / "there") == records(tmp_path / "here")
    assert list((tmp_path / "cache" / "swe-core" / "nodes").iterdir()) == []
    wait_for(lambda: not processes(scratch))
    assert [path for path in scratch.rglob("*") if path.parent != scratch] == []


def test_killed_driver_leaves_no_processes(tmp_path: Path, scratch: Path, local_sandbox: None) -> None:
    with start(tmp_path, scratch, "killed", "--executor", "ray", "--workers", "1") as process:
        wait_for(lambda: any(line.startswith(b"ray::NodeActor") for line in processes(scratch)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_for(lambda: not processes(scratch))
