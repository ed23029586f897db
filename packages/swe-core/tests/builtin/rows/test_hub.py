"""Rows through the real library `datasets`: a data set on disk, and a Hub that cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from swe_core.builtin.rows import RowsConfig, swe_tasks
from swe_core.builtin.rows.hub import load_rows
from swe_core.errors import ConfigError, TaskError
from swe_core.plugins.manager import PluginSet
from swe_core.run.settings import load_settings
from swe_core.run.task_selection import selection

from .helpers import load_file, row


@pytest.fixture(autouse=True)
def datasets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library, with a cache of this test's own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    return datasets


def data_set(directory: Path, **splits: list[dict[str, object]]) -> Path:
    """A data set as it is on the Hub: a card that names the splits, and a table for each."""
    from pyarrow import Table, parquet

    directory.mkdir()
    files = "".join(f"  - split: {name}\n    path: {name}-*.parquet\n" for name in splits)
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n"
    (directory / "README.md").write_text(card)
    for name, rows in splits.items():
        parquet.write_table(Table.from_pylist(rows), directory / f"{name}-00000-of-00001.parquet")
    return directory


def named(name: str) -> dict[str, object]:
    return row("bench", instance_id=name)


def test_split_is_named_or_inferred(tmp_path: Path) -> None:
    cases = (("only", None, "only"), ("dev test train", None, "test"), ("dev test", "dev", "dev"))
    for number, (splits, wanted, found) in enumerate(cases):
        rows = {name: [named(name), named(f"{name}-2")] for name in splits.split()}
        directory = data_set(tmp_path / f"d{number}", **rows)
        assert [task.instance_id for task in load_file(directory, split=wanted)] == [found, f"{found}-2"]


def test_directory_reads_like_a_file_of_its_rows(tmp_path: Path) -> None:
    """Whatever arrow makes of the columns: structs with gaps, lists, lists as JSON."""
    for family, columns in (("rebench", {"meta": {"score": 1}}), ("smith", {}), ("r2e", {})):
        directory = data_set(tmp_path / family, train=[row(family, **columns)])
        (tmp_path / "rows.jsonl").write_text(json.dumps(row(family, **columns)))
        (parquet,) = directory.glob("*.parquet")
        assert load_file(directory) == load_file(parquet) == load_file(tmp_path / "rows.jsonl")


def test_invalid_row_is_named_by_split_and_number(tmp_path: Path) -> None:
    directory = data_set(tmp_path / "d", test=[named("a"), {**named("b"), "base_commit": "main"}])
    with pytest.raises(TaskError, match=r"d, split test', row 2 \('b'\): the column 'base_commit' is 'main'"):
        load_file(directory)
    with pytest.raises(TaskError, match=r"00001\.parquet', row 2 \('b'\): the column 'base_commit'"):
        load_file(next(directory.glob("*.parquet")))


@pytest.mark.parametrize(
    ("splits", "wanted", "says"),
    [
        (("test", "train"), "tset", r"has no split 'tset': did you mean 'test'\? There are: .*train"),
        (("one", "two"), None, r"has several splits: choose one with --split \((one, two|two, one)\)"),
        ((), None, "the directory '.*d' "),
    ],
)
def test_data_set_without_the_split_is_rejected(
    tmp_path: Path, splits: tuple[str, ...], wanted: str | None, says: str
) -> None:
    directory = data_set(tmp_path / "d", **{name: [named("a")] for name in splits})
    with pytest.raises(TaskError, match=says):
        load_file(directory, split=wanted)


def test_rows_need_either_a_file_or_a_data_set(tmp_path: Path) -> None:
    (component,) = swe_tasks()
    for config in (RowsConfig(), RowsConfig(file=tmp_path, dataset="a/b")):
        with pytest.raises(ConfigError, match="either a file or a data set"):
            component.create(config)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row()))
    with pytest.raises(ConfigError, match=r"--split 'test': the file '.*' has no splits"):
        load_file(file, split="test")


def test_filter_is_applied_before_a_row_is_read(tmp_path: Path) -> None:
    """So that a data set with rows that cannot be run can be used."""
    rows = [{**named("a"), "language": "python"}, {"instance_id": "broken", "language": "cobol"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert [task.instance_id for task in load_file(file, filter=("language=py*",))] == ["a"]
    with pytest.raises(TaskError, match="broken"):
        load_file(file)


def test_tasks_option_accepts_a_data_set(datasets: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--tasks OWNER/NAME --split` arrives at the library; what ends like a file is one."""
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name: ["dev", "test"])
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, split: asked.append((name, split)) or [named("a")]
    )
    settings = load_settings(command_line={"run": {"tasks": "SWE-bench/SWE-bench", "split": "dev"}})
    assert [task.instance_id for task in selection(settings, PluginSet(allow=[])).tasks()] == ["a"]
    assert asked == [("SWE-bench/SWE-bench", "dev")]
    with pytest.raises(TaskError, match="neither a file nor a data set"):
        selection(load_settings(command_line={"run": {"tasks": "rows/of.jsonl"}}), PluginSet(allow=[]))


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TaskError, match=r"'a/b' is read by .* datasets: pip install 'swe-core\[datasets\]'"):
        load_rows("a/b", None, local=False)
    (tmp_path / "rows.parquet").write_bytes(b"")
    with pytest.raises(TaskError, match=r"needs pyarrow: pip install 'swe-core\[datasets\]'"):
        load_file(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("SWE-Gym/SWE-Gymm", "DatasetNotFoundError", "is not on the Hub.*did you mean 'SWE-Gym/SWE-Gym'"),
        ("a/b", "DatasetNotFoundError", "is not on the Hub, or this machine may not read it: A private"),
        ("a/b", ConnectionError, "cannot be had, for the Hub cannot be reached .no.: check the network"),
        ("a/b", ValueError, "the data set 'a/b' cannot be read: ValueError: no"),
    ],
)
def test_data_set_that_cannot_be_had_is_an_error(
    datasets: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, error: Any, says: str
) -> None:
    def fail(_: str) -> None:
        raise (getattr(datasets.exceptions, error) if isinstance(error, str) else error)("no")

    monkeypatch.setattr(datasets, "get_dataset_split_names", fail)
    with pytest.raises(TaskError, match=says):
        load_rows(name, None, local=False)


# The library's own errors, in a process of its own, for it reads its environment when it is imported.

QUICK = "import time, sys; time.sleep = lambda seconds: None; from swe_core.cli import main; main()"


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}], ids=str
)
def test_unreachable_hub_is_an_error(tmp_path: Path, environment: dict[str, str]) -> None:
    """The library's pauses between its attempts are left out."""
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_TOKEN": "", "SWE_PLUGINS": "", **environment}
    argv = [sys.executable, "-W", "ignore", "-c", QUICK, "tasks", "list", "--tasks", "SWE-Gym/SWE-Gym"]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().split("\n")[-1]
    assert "the data set 'SWE-Gym/SWE-Gym' cannot be had, for the Hub cannot be reached" in last
    assert "Traceback" not in done.stderr
