"""`swe-core run --dry-run`: what would run, without a sandbox or a directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_core.cli import main
from swe_core.run.components import load_plugins
from swe_core.run.execute import create_directory
from swe_core.run.plan import plan_run
from swe_core.run.settings import load_settings
from swe_core.system.redaction import Redactor

Ran = Callable[..., tuple[int, dict[str, str], str]]
BLACK_BOX = (
    *("--mode", "black-box", "--network", "full", "--agent-key-env", "PATH"),
    *("--engine-url", "http://127.0.0.1:9/v1", "--model", "m"),
)


@pytest.fixture
def dry_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ran:
    """Run `swe-core run --dry-run ARGS` in `tmp_path`: exit code, the lines by their names, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWE_PLUGINS", "")

    def run(*args: str) -> tuple[int, dict[str, str], str]:
        unisolated = ["--set", "sandbox.local.unisolated=true"]  # the same on a machine without bubblewrap
        monkeypatch.setattr(sys, "argv", ["swe-core", "run", "--dry-run", *unisolated, *args])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        lines = {line[:10].strip(): line[10:] for line in said.out.splitlines()}
        return int(ended.value.code or 0), lines, said.err

    return run


def test_evaluation_is_described_and_nothing_written(dry_run: Ran, tmp_path: Path) -> None:
    args = ("--attempts", "2", "--concurrency", "3", "--set", "budget.turns=50", "--out", "mine")
    code, lines, _ = dry_run(*args)
    assert code == 0
    assert lines["rollouts"] == "12 = 6 tasks × 2 attempts, 3 at a time"
    assert lines["tasks"].startswith("demo: demo__csvtidy-1, demo__")
    assert lines["tasks"].endswith(" and 3 more")
    assert (lines["agent"], lines["engine"], lines["grader"], lines["worker"]) == (
        *("mini", "replay", "swe", "collect"),
    )
    assert lines["sandbox"] == "local, network llm, 4096 MiB, 2 processors"
    assert "agent 1800 s" in lines["limits"]
    assert lines["budget"] == "turns 50"
    assert lines["records"] == "mine (not created yet)"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    assert dry_run("--out", "empty")[0] == 0


@pytest.mark.parametrize(
    ("args", "engine"),
    [
        (("--agent", "oracle"), "none: the agent makes no LLM calls"),
        (("--engine-url", "http://127.0.0.1:9/v1", "--model", "m"), "openai: m at http://127.0.0.1:9/v1"),
        (BLACK_BOX, "none (black-box mode): the agent calls m at http://127.0.0.1:9/v1"),
    ],
)
def test_who_answers_calls(dry_run: Ran, args: tuple[str, ...], engine: str) -> None:
    code, lines, err = dry_run("--limit", "1", *args)
    assert code == 0, err
    assert lines["engine"] == engine
    assert lines["rollouts"] == "1 = 1 task × 1 attempt, 4 at a time"
    assert lines["records"].startswith("runs/")


def test_resumed_run_names_what_is_left(dry_run: Ran, tmp_path: Path) -> None:
    settings = load_settings(
        sets=["run.agent=oracle", "run.attempts=2", "run.limit=2", "sandbox.local.unisolated=true"]
    )
    plugins = load_plugins(settings.run)
    plan = plan_run(settings, plugins)
    create_directory(plan, plugins, tmp_path / "begun", Redactor(), planned=4)
    ids = [f"{task.instance_id}-{attempt}" for task in plan.tasks for attempt in (0, 1)]
    outcomes = ("resolved", "error", "cancelled", None)
    lines = [{"id": id_, "outcome": outcome} for id_, outcome in zip(ids, outcomes, strict=True) if outcome]
    (tmp_path / "begun" / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = sorted(tmp_path.rglob("*"))
    for args, left in (((), 2), (("--retry-errors",), 3)):
        code, said, err = dry_run("--resume", "begun", *args)
        assert code == 0, err
        assert said["rollouts"] == f"4 = 2 tasks × 2 attempts, {left} of them left, 4 at a time"
        assert said["records"] == "begun (of the resumed run)"
    code, _, err = dry_run("--resume", "begun", "--attempts", "3")
    assert code == 2
    assert "cannot be resumed" in err
    assert sorted(tmp_path.rglob("*")) == before
