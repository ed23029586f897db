"""`swe-core top`, against metrics as a run serves them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner

from swe_core.cli import top as module
from swe_core.cli.top import top
from swe_core.run.execute import SERVER_FILE
from swe_testing.records import make_rollout, make_run

OF_NODES = """
swe_node_up{{node="one"}} 1.0
swe_node_up{{node="two"}} 0.0
swe_node_slots{{node="one"}} 8.0
swe_node_slots{{node="two"}} 8.0
swe_node_rollouts{{node="one"}} 5.0
swe_node_rollouts{{node="two"}} 0.0
# TYPE swe_node_lost counter
swe_node_lost_total{{node="two"}} 3.0
# TYPE swe_node_finished counter
swe_node_finished_total{{node="one",outcome="resolved"}} 2.0
swe_node_finished_total{{node="one",outcome="error"}} 1.0
# TYPE swe_turns counter
swe_turns_total{{ended="completed",node="one"}} 40.0
swe_turns_total{{ended="failed",node="one"}} 2.0
# TYPE swe_tokens counter
swe_tokens_total{{kind="completion",node="one"}} {tokens}
"""
OF_ONE = """
swe_rollouts_open 2.0
# TYPE swe_tokens counter
swe_tokens_total{{kind="completion"}} {tokens}
"""


def shown(path: Path, text: str) -> list[list[str]]:
    """What is shown of a run that serves these metrics, and at each look 100 more tokens."""
    looks = iter(range(100, 10_000, 100))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == "Bearer secret" and self.path == "/metrics"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(text.format(tokens=next(looks)).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    run = make_run(path / "run", 10)
    run.rewrite(run.info.model_copy(update={"settings": {"run": {"concurrency": 4}}}))
    run.append(make_rollout("a"))
    run.append(make_rollout("b", outcome="error", reward=None))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"url": f"http://127.0.0.1:{server.server_port}", "metrics_token": "secret", "pid": 1}
        (run.path / SERVER_FILE).write_text(json.dumps(address))
        with patch.object(module, "_PACE", 0.01):
            done = CliRunner().invoke(top, [str(run.path), "--once"], env={"COLUMNS": "160"})
        server.shutdown()
    assert done.exit_code == 0, done.output
    title, *rows = done.stdout.splitlines()
    assert title.strip() == "2 of 10 rollouts finished: 1 error, 1 resolved"
    return [row.split() for row in rows]


def test_each_node_has_a_row(tmp_path: Path) -> None:
    head, one, two = shown(tmp_path, OF_NODES)
    assert " ".join(head) == "node state rollouts slots finished errors lost calls failed tokens/s"
    assert one[:-1] == ["one", "up", "5", "8", "3", "1", "0", "40", "2"]
    assert float(one[-1].replace(",", "")) > 0
    assert two == ["two", "out", "0", "8", "0", "0", "3", "0", "0", "0"]


def test_run_in_one_process_is_one_node(tmp_path: Path) -> None:
    _, here = shown(tmp_path, OF_ONE)
    assert here[:8] == ["this", "process", "up", "2", "4", "2", "1", "0"]


def test_run_that_does_not_run_is_said_in_a_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for content in (None, "{}", "no JSON", '{"url": "http://127.0.0.1:1", "metrics_token": "x"}'):
        if content is not None:
            (run.path / SERVER_FILE).write_text(content)
        done = CliRunner().invoke(top, [str(run.path)])
        assert "does not run here" in str(done.exception)
        assert "give one that is running on this host" in str(done.exception)
