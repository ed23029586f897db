"""Each plugin in examples/ does in a real run what its docstring says."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.task import Task

from .conftest import TASK, SweCore

EXAMPLES = Path(__file__).parents[1] / "examples"
FIX = "sed -i 's/sorted(kwargs)/sorted(map(repr, kwargs.items()))/' memofn/keys.py"

pytestmark = pytest.mark.usefixtures("local_sandbox")


def example(name: str) -> tuple[str, str]:
    return "-p", str(EXAMPLES / f"{name}.py")


def test_one_shot_agent_applies_the_diff_of_its_reply(swe_core: SweCore, task: Task, tmp_path: Path) -> None:
    recording = tmp_path / "recording.jsonl"
    message = {"role": "assistant", "content": f"Here it is.\n```diff\n{task.patch}```"}
    recording.write_text(json.dumps({"task_id": TASK, "replies": [{"message": message}]}))
    done = swe_core(*example("one_shot_agent"), "--task", TASK, "--recording", str(recording))
    assert (done.only["agent"], done.only["outcome"], done.only["turns"]) == ("one_shot", "resolved", 1)


def test_folder_tasks_reads_each_folder(swe_core: SweCore, tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "adder-1"
    repository = folder / "repository"
    repository.mkdir(parents=True)
    (repository / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "An adder")):
        who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
        subprocess.run(["git", "-C", repository, *who, *words], check=True)
    (folder / "task.toml").write_text(
        'fail_to_pass = ["test_adder.py::test_add"]\npass_to_pass = []\n'
        'test_command = "python3 -m pytest -rA"\n'
    )
    (folder / "instruction.md").write_text("add(2, 2) is 0.\n")
    (folder / "tests.patch").write_text(
        "diff --git a/test_adder.py b/test_adder.py\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/test_adder.py\n"
        "@@ -0,0 +1,5 @@\n+from adder import add\n+\n+\n+def test_add():\n+    assert add(2, 2) == 4\n"
    )
    (folder / "gold.patch").write_text(
        "diff --git a/adder.py b/adder.py\n--- a/adder.py\n+++ b/adder.py\n"
        "@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
    )
    chosen = f"tasks.folders.path={folder.parent}"
    done = swe_core(*example("folder_tasks"), "--tasks", "folders", "--set", chosen, "--agent", "oracle")
    assert (done.only["task_id"], done.only["outcome"]) == ("adder-1", "resolved")


@pytest.mark.parametrize(
    ("check", "outcome"), [("grep -q repr memofn/keys.py", "resolved"), ("exit 1", "unresolved")]
)
def test_command_grader_believes_the_command(swe_core: SweCore, check: str, outcome: str) -> None:
    rule = f"grader.command.command={check}"
    done = swe_core(*example("command_grader"), "--set", rule, "--agent", "oracle", "--task", TASK)
    assert done.only["outcome"] == outcome


def test_script_engine_plays_its_file(swe_core: SweCore, tmp_path: Path) -> None:
    file = tmp_path / "commands.sh"
    file.write_text(f"git ls-files\n{FIX}\n")
    done = swe_core(*example("script_engine"), "--set", f"engine.script.file={file}", "--task", TASK)
    assert (done.only["engine"], done.only["outcome"], done.only["turns"]) == ("script", "resolved", 3)


def test_script_for_trl_is_the_one_of_its_guide() -> None:
    """`packages/swe-openenv/tests/harness/test_training.py` trains with it."""
    script = (EXAMPLES / "trl_harness.py").read_text().partition('"""\n\n')[2]
    assert script in (EXAMPLES.parent / "docs" / "trl-harness.md").read_text()


def test_cost_log_adds_the_tokens_up(swe_core: SweCore) -> None:
    prices = {"PRICE_IN": "1000000", "PRICE_OUT": "1000000"}
    done = swe_core(*example("cost_log"), "--task", TASK, env=prices)
    usage = done.only["usage"]
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    assert total > 0
    assert f"cost so far: {total:.4f} dollars, rollouts: 1" in " ".join(done.stderr.split())


def test_tracker_sends_each_rollout_and_outlives_a_server_that_refuses(swe_core: SweCore) -> None:
    received: list[dict[str, Any]] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(received) == 1 else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"TRACKER_URL": f"http://127.0.0.1:{server.server_port}"}
        two = ("--agent", "oracle", "--task", TASK, "--attempts", "2")
        done = swe_core(*example("tracker"), *two, env=address)
        server.shutdown()
    assert sorted(one["rollout"] for one in received) == [f"{TASK}-0", f"{TASK}-1"]
    assert {(one["outcome"], one["reward"]) for one in received} == {("resolved", 1.0)}
    assert "was not sent: HTTP Error 503" in " ".join(done.stderr.split())
