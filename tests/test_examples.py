"""The examples as a user takes them: plugins of one file in a real run, and installed packages.

What each package does is tested beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from .conftest import TASK, SweCore

EXAMPLES = Path(__file__).parents[1] / "examples"
FIX = "sed -i 's/sorted(kwargs)/sorted(map(repr, kwargs.items()))/' memofn/keys.py"
PACKAGES = ["agent", "engine", "grader", "sandbox", "tasks"]


@pytest.mark.usefixtures("local_sandbox")
def test_engine_and_observers_do_what_they_say(swe_core: SweCore, tmp_path: Path) -> None:
    """The engine plays its file, costs are added up, and the tracker outlives a server that refuses."""
    received: list[dict[str, Any]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(received) == 1 else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "commands.sh").write_text(f"git ls-files\n{FIX}\n")
    plugins = [EXAMPLES / name for name in ("engine/swe_engine_script.py", "cost_log.py", "tracker.py")]
    options = [word for path in plugins for word in ("-p", str(path))]
    options += ["--set", f"engine.script.file={tmp_path / 'commands.sh'}", "--attempts", "2"]
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"TRACKER_URL": f"http://127.0.0.1:{server.server_port}", "PRICE_IN": "1", "PRICE_OUT": "1"}
        done = swe_core(*options, "--task", TASK, env=env)
        server.shutdown()
    ended = [(one["engine"], one["outcome"], one["turns"]) for one in done.rollouts]
    assert ended == [("script", "resolved", 3)] * 2
    assert sorted(one["rollout"] for one in received) == [f"{TASK}-0", f"{TASK}-1"]
    assert {(one["outcome"], one["reward"]) for one in received} == {("resolved", 1.0)}
    said = " ".join(done.stderr.split())
    assert "was not sent: HTTP Error 503" in said
    assert "cost so far: 0.0000 dollars, rollouts: 2" in said


@pytest.mark.slow
def test_packages_install_and_are_found(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    folders = [str(EXAMPLES / name) for name in PACKAGES]
    subprocess.run([*pip, "--target", str(tmp_path), *folders], check=True)
    script = "from swe_core.cli import main; main()"
    listed = subprocess.run(
        [sys.executable, "-c", script, "plugins"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {line.split()[0]: line for line in listed.splitlines() if " 0.1.0 " in line and line.strip()}
    for name, role in {
        "one_shot": "agent",
        "script": "engine",
        "command": "grader",
        "directory": "sandbox",
        "folders": "tasks",
    }.items():
        assert f"{role} {name}" in found[name]


def test_script_for_trl_is_the_one_of_its_guide() -> None:
    """`packages/swe-openenv/tests/harness/test_training.py` trains with it."""
    script = (EXAMPLES / "trl_harness.py").read_text().partition('"""\n\n')[2]
    assert script in (EXAMPLES.parent / "docs" / "trl-harness.md").read_text()
