"""Rows through the real library `datasets`: a data set on disk, and a Hub that cannot be reached."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from swe_core.api.task import Task
from swe_core.builtin.rows import RowsConfig, swe_tasks
from swe_core.builtin.rows.hub import load_rows
from swe_core.errors import ConfigError, TaskError
from swe_core.plugins.manager import PluginSet
from swe_core.run.settings import load_settings
from swe_core.run.task_selection import selection

from .test_families import R2E, REBENCH, SMITH, SWE_BENCH


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
    return {**SWE_BENCH, "instance_id": name}


def tasks(file: Path, split: str | None = None, **more: object) -> list[Task]:
    (component,) = swe_tasks()
    return list(component.create(RowsConfig(file=file, split=split, **more)).tasks())


@pytest.mark.parametrize(
    ("splits", "wanted", "found"),
    [
        (("only",), None, "only"),
        (("dev", "test", "train"), None, "test"),
        (("dev", "train"), None, "train"),
        (("dev", "test"), "dev", "dev"),
    ],
)
def test_split_is_named_or_inferred(
    tmp_path: Path, splits: tuple[str, ...], wanted: str | None, found: str
) -> None:
    directory = data_set(tmp_path / "d", **{name: [named(name), named(f"{name}-2")] for name in splits})
    assert [task.instance_id for task in tasks(directory, wanted)] == [found, f"{found}-2"]


def test_directory_reads_like_a_file_of_its_rows(tmp_path: Path) -> None:
    """Whatever arrow makes of the columns: structs with gaps, lists, lists as JSON."""
    rows = [{**REBENCH, "meta": {"score": 1}}, {**SMITH, "FAIL_TO_PASS": ["tests/test_x.py::a"]}, R2E]
    for number, row in enumerate(rows):
        directory = data_set(tmp_path / f"d{number}", train=[row])
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        (parquet,) = directory.glob("*.parquet")
        assert tasks(directory) == tasks(parquet) == tasks(tmp_path / "rows.jsonl")


def test_invalid_row_is_named_by_split_and_number(tmp_path: Path) -> None:
    directory = data_set(tmp_path / "d", test=[named("a"), {**named("b"), "base_commit": "main"}])
    with pytest.raises(TaskError, match=r"d, split test', row 2 \('b'\): the column 'base_commit' is 'main'"):
        tasks(directory)
    with pytest.raises(TaskError, match=r"00001\.parquet', row 2 \('b'\): the column 'base_commit'"):
        tasks(next(directory.glob("*.parquet")))


def test_unknown_split_suggests_a_close_name(tmp_path: Path) -> None:
    directory = data_set(tmp_path / "d", test=[named("a")], train=[named("b")])
    with pytest.raises(TaskError, match=r"has no split 'tset': did you mean 'test'\? There are: .*train"):
        tasks(directory, "tset")


def test_several_other_splits_need_a_choice(tmp_path: Path) -> None:
    directory = data_set(tmp_path / "d", one=[named("a")], two=[named("b")])
    with pytest.raises(
        TaskError, match=r"has several splits: choose one with --split \((one, two|two, one)\)"
    ):
        tasks(directory)


def test_directory_without_data_set_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(TaskError, match=r"the directory '.*d' "):
        tasks(tmp_path / "d")
    (tmp_path / "d" / "test.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TaskError, match=r"the directory '.*d' cannot be read"):
        tasks(tmp_path / "d")


def test_file_has_no_split(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(SWE_BENCH))
    with pytest.raises(ConfigError, match=r"--split 'test': the file '.*' has no splits"):
        tasks(file, "test")


def test_rows_need_either_a_file_or_a_data_set(tmp_path: Path) -> None:
    (component,) = swe_tasks()
    for config in (RowsConfig(), RowsConfig(file=tmp_path, dataset="a/b")):
        with pytest.raises(ConfigError, match="either a file or a data set"):
            component.create(config)


def test_filter_is_applied_before_a_row_is_read(tmp_path: Path) -> None:
    """So that a data set with rows that cannot be run can be used."""
    rows = [{**named("a"), "language": "python"}, {"instance_id": "broken", "language": "cobol"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert [task.instance_id for task in tasks(file, filter=("language=py*",))] == ["a"]
    with pytest.raises(TaskError, match="broken"):
        tasks(file)


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
        tasks(tmp_path / "rows.parquet")


# The Hub: a process of its own, for the library reads its environment when it is imported.

QUICK = "import time, sys; time.sleep = lambda seconds: None; from swe_core.cli import main; main()"


def listed(directory: Path, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`swe-core tasks list` of a data set; the library's pauses between its attempts are left out."""
    env = {**os.environ, "HF_HOME": str(directory), "HF_TOKEN": "", "SWE_PLUGINS": "", **environment}
    argv = [sys.executable, "-W", "ignore", "-c", QUICK, "tasks", "list", "--tasks", name]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=directory, timeout=300)


@pytest.fixture
def hub() -> Iterator[str]:
    """A Hub that knows nothing."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET  # noqa: N815 (the base class's names)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_unknown_data_set_suggests_a_close_name(tmp_path: Path, hub: str) -> None:
    done = listed(tmp_path, "SWE-Gym/SWE-Gymm", HF_ENDPOINT=hub)
    last = done.stderr.strip().split("\n")[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith("swe-core: error: the data set 'SWE-Gym/SWE-Gymm' is not on the Hub")
    assert "did you mean 'SWE-Gym/SWE-Gym'?" in last


@pytest.mark.parametrize(
    "environment",
    [{"HF_ENDPOINT": "http://127.0.0.1:9"}, pytest.param({"HF_HUB_OFFLINE": "1"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_unreachable_hub_is_an_error(tmp_path: Path, environment: dict[str, str]) -> None:
    done = listed(tmp_path, "SWE-Gym/SWE-Gym", **environment)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().split("\n")[-1]
    assert "the data set 'SWE-Gym/SWE-Gym' cannot be had, for the Hub cannot be reached" in last
    assert "Traceback" not in done.stderr
