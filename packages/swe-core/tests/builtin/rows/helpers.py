"""A good row of each data set, and what the source `rows` makes of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.task import Task
from swe_core.builtin.rows import RowsConfig, swe_tasks
from swe_core.errors import TaskError

HERE = Path(__file__).parent
ROWS: dict[str, dict[str, Any]] = json.loads((HERE / "rows.json").read_text())
ROWS["eval"]["eval_script"] = "".join(f"{line}\n" for line in ROWS["eval"]["eval_script"])
for column in ("parsed_commit_content", "expected_output_json"):
    ROWS["r2e"][column] = json.dumps(ROWS["r2e"][column])
DIFF: str = ROWS["gym"]["patch"]


def row(family: str = "gym", /, **columns: Any) -> dict[str, Any]:
    return {**ROWS[family], **columns}


def changed(family: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """A row with other columns, or with other values in a column that is JSON: `column.key`."""
    made = row(family)
    for name, value in columns.items():
        column, dot, key = name.partition(".")
        made[column] = json.dumps({**json.loads(made[column]), key: value}) if dot else value
    return made


def load_file(file: Path, **settings: Any) -> list[Task]:
    (component,) = swe_tasks()
    return list(component.create(RowsConfig(file=file, **settings)).tasks())


def load(directory: Path, *rows: object) -> list[Task]:
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps(value) + "\n" for value in rows), encoding="utf-8")
    return load_file(file)


def refusal(directory: Path, *rows: object) -> str:
    with pytest.raises(TaskError) as caught:
        load(directory, *rows)
    return str(caught.value)
