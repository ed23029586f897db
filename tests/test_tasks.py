"""`swe-core tasks list` and `show`: what is printed, and what is not printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .conftest import Command, Done

SECRET = "the_gold_line"
Tasks = Callable[..., Done]
ROW = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "base_commit": "a" * 40,
    "problem_statement": "It is \x1b]0;broken\x07.",
    "patch": f"--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a = 1\n-b\n+{SECRET}\n+c\n+d\n",
    "test_patch": "",
    "FAIL_TO_PASS": ["t.py::a"],
    "PASS_TO_PASS": ["t.py::b", "t.py::c"],
    "image_name": "o/image:1",
    "test_command": "pytest -rA",
    "setup": "export A=1\nexport B=2",
}


@pytest.fixture
def tasks(command: Command) -> Tasks:
    """Call `swe-core tasks ARGS`."""
    return partial(command, "tasks")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW))
    return str(file)


def test_list(tasks: Tasks, rows: str) -> None:
    done = tasks("list", "--tasks", rows)
    assert [line.split() for line in done.stdout.strip().split("\n")] == [
        ["task", "repository", "runs", "in", "tests"],
        ["o__r-1", "o/r", "o/image:1", "1", "+", "2"],
        [],
        ["1", "task"],
    ]
    (listed,) = json.loads(tasks("list", "--tasks", rows, "--json").stdout)
    assert (listed["image"], listed["fail_to_pass"], listed["pass_to_pass"]) == ("o/image:1", 1, 2)
    assert SECRET not in json.dumps(listed)


def test_show_tells_all_but_the_gold_patch(tasks: Tasks, rows: str) -> None:
    shown = tasks("show", "o__r-1", "--tasks", rows).stdout
    for text in ("It is .", "o/image:1", "pytest -rA", "t.py::c", "1 file, +3 -2", "export A=1; export B=2"):
        assert text in shown
    assert SECRET not in shown
    as_json = json.loads(tasks("show", "o__r-1", "--tasks", rows, "--json").stdout)
    assert SECRET not in json.dumps(as_json)
    assert as_json["gold"] == {"files": 1, "added": 3, "removed": 2, "bytes": len(ROW["patch"])}
    assert SECRET in tasks("show", "o__r-1", "--tasks", rows, "--gold").stdout
