"""The live table, on a real terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swe_core.builtin.demo.source import RECORDING
from swe_testing.terminal import pseudo_terminal

TASK = "demo__memofn-1"


@pytest.fixture
def unhurried(tmp_path: Path) -> Path:
    """The recording of the demo, with an agent that takes longer than the table takes to be drawn again."""
    lines = []
    for recorded in map(json.loads, RECORDING.read_text().splitlines()):
        if recorded["task_id"] == TASK and recorded["agent"] is None:
            called = recorded["replies"][0]["message"]["tool_calls"][0]["function"]
            command = json.loads(called["arguments"])["command"]
            called["arguments"] = json.dumps({"command": f"sleep 1.5; {command}"})
            lines.append(json.dumps(recorded))
    path = tmp_path / "recording.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_terminal_shows_a_line_per_running_rollout_and_a_summary(tmp_path: Path, unhurried: Path) -> None:
    program = str(Path(sys.executable).parent / "swe-core")
    command = [program, "run", "--task", TASK, "--attempts", "2", "--concurrency", "1"]
    command += ["--engine", "replay", "--recording", str(unhurried), "--out", str(tmp_path / "run")]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with pseudo_terminal() as (terminal, shown):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal, env=env, timeout=300
        )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"task +attempt +phase +turns +tokens +seconds", text)
    for attempt in (0, 1):
        assert re.search(rf"{TASK} +{attempt} +agent +\d+ +\d+ +\d+", text)
    assert re.search(r"1/2 done, 1 resolved, \d+ s, about \d+ s left", text)
    assert re.search(rf"resolved +{TASK}-0  4 turns", text)
    assert b"resolved 2 of 2" in done.stdout  # the table itself goes to standard output
