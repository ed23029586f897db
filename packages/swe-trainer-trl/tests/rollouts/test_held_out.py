"""The held-out tasks of a training: which they are, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swe_core.builtin.demo.source import DemoSource
from swe_core.run.components import load_plugins
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.run.task_selection import selection
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.rollouts.held_out import held_out

from ..scripted_rollouts import leave_repositories

TRAINED = "demo__memofn-1"
PLUGIN = Path(__file__).parents[1] / "scripted_rollouts.py"


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what the plugin does to its process, in which other tests follow: their patches would be empty."""
    leave_repositories(monkeypatch.setattr)


def tasks_of(run: dict[str, Any] | None = None, **config: Any) -> list[str]:
    """The ids of the held-out tasks of a training on one task of the demo."""
    options = {"plugins": (), "extra_plugins": (str(PLUGIN),), "tasks": "demo", "only": (TRAINED,)}
    parts = dict.fromkeys(("agent", "engine", "grader"), "scripted")
    settings = Settings(run={**options, **parts, **(run or {})})
    plugins = load_plugins(settings.run)
    tasks = held_out(plan_run(settings, plugins), TRLConfig(**config), lambda of: selection(of, plugins))
    return [task.instance_id for task in tasks]


def rows(folder: Path, names: Sequence[str]) -> str:
    """A file of tasks with an image."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({**_ROW, "instance_id": name}) + "\n" for name in names))
    return str(file)


_ROW = {"repo": "a/b", "base_commit": "0" * 40, "problem_statement": "It is broken.", "patch": ""}
_ROW |= {"test_patch": "diff --git a/t.py b/t.py\n", "FAIL_TO_PASS": '["t.py::test"]', "PASS_TO_PASS": "[]"}
_ROW |= {"image_name": "image", "test_command": "pytest"}


def test_tasks_are_those_of_the_source_and_options_of_the_training_do_not_select(tmp_path: Path) -> None:
    run = {"tasks": rows(tmp_path, ["a", "b"]), "only": ("a",), "limit": 1, "shuffle": 3}
    every = [task.instance_id for task in DemoSource().tasks()]
    assert tasks_of(run, eval_tasks="demo") == every
    assert tasks_of(run) == []
    assert tasks_of(eval_tasks=rows(tmp_path, ["one", "two"])) == ["one", "two"]
    assert tasks_of(eval_every=2, eval_tasks=None) == []  # a resume that ends the evaluations
