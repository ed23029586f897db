"""The command: what it chooses, where it writes, its data card, and what goes wrong."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import DatasetCard

from swe_core.errors import UsageError
from swe_core.export import formats
from swe_core.export.formats import format_named
from swe_core.export.sft import SftWriter
from swe_core.rollout.run_directory import RunDirectory

from ..hub.runs import add, error, new_run, rollout
from .conftest import Export, invoke


def sentence(done: Any) -> str:
    """The error of a command, which must be wrong input."""
    assert isinstance(done.exception, UsageError), done.exception
    return str(done.exception)


def test_card_says_what_the_data_are(training: RunDirectory, exported: Export) -> None:
    text = (exported(training, "parquet") / "README.md").read_text()
    assert DatasetCard(text).data["configs"][0]["data_files"] == [{"split": "train", "path": "train.parquet"}]
    assert "17 rows in the format parquet." in text
    assert "14 rollouts of 4 tasks, 7 of 14 resolved (50.0%)" in text
    assert "| sample.jsonl | sample | mini | box |" in text
    assert "**Selected:** only rollouts with the outcome resolved or unresolved are here." in text
    assert "- Sample data: no agent or model was run." in text


@pytest.mark.parametrize("name", ["jsonl", "sft", "atif"])
def test_export_names_no_local_path(tmp_path: Path, exported: Export, name: str) -> None:
    run = new_run(tmp_path / "run", run={"tasks": str(tmp_path / "rows.jsonl")})
    ledger = {"sampled": 5, "trainable": 5}
    add(run, rollout("a-0", model=str(tmp_path / "weights"), ledger=ledger))
    files = [path for path in exported(run, name).rglob("*") if path.is_file()]
    assert [path for path in files if str(tmp_path).encode() in path.read_bytes()] == []


def test_existing_folder_is_kept(run: RunDirectory, tmp_path: Path) -> None:
    add(run, rollout("a-0"))
    out = tmp_path / "out"
    out.mkdir()
    assert invoke(run.path, "--format", "sft", "--out", out).exit_code == 0  # it was empty
    again = invoke(run.path, "--format", "atif", "--out", out)
    assert f"{str(out)!r} has an earlier export: replace it with --force, or give another" in sentence(again)
    assert invoke(run.path, "--format", "atif", "--out", out, "--force").exit_code == 0
    assert not (out / "train.jsonl").exists()
    (out / "README.md").write_text("# My project\n")
    other = invoke(run.path, "--format", "sft", "--out", out, "--force")
    assert sentence(other).endswith(f"{str(out)!r} is not empty and no earlier export: give another --out")
    file = invoke(run.path, "--format", "sft", "--out", out / "README.md", "--force")
    assert sentence(file) == f"{str(out / 'README.md')!r} is there and is no folder: give another --out"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_missing_library_is_named(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(run, rollout("a-0", ledger={"sampled": 5, "trainable": 5}))
    monkeypatch.setattr(formats, "find_spec", lambda _name: None)
    for name, package in (("atif", "atif"), ("parquet", "numpy")):
        done = invoke(run.path, "--format", name, "--out", tmp_path / "out")
        hint = f"pip install 'swe-core[{format_named(name).extra}]'"
        assert sentence(done) == f"this format needs the package {package!r}, which is not installed: {hint}"


def filled(old: bytes = b"", new: bytes = b"", **fields: Any) -> Callable[[RunDirectory], None]:
    """Make a run of one rollout, in whose record `old` becomes `new`."""

    def fill(run: RunDirectory) -> None:
        tokens = fields.pop("tokens", True)
        add(run, rollout("a-0", **fields), tokens=tokens)
        path = run.path / "rollouts.jsonl"
        path.write_bytes(path.read_bytes().replace(old, new, 1))

    return fill


INTERRUPTED = {"outcome": "cancelled", "reward": None, "grade": None}
UNRESOLVED = {"outcome": "unresolved", "reward": 0.0}


@pytest.mark.parametrize(
    ("fill", "args", "says"),
    [
        (filled(**INTERRUPTED), "sft", "'RUN' has no finished rollout yet, so there is nothing to export"),
        (filled(**UNRESOLVED), "sft", "no finished rollout of 'RUN' is resolved: choose others"),
        (filled(**UNRESOLVED), "atif --task aa", "is of the task 'aa'; did you mean 'a'?"),
        (filled(tokens=False), "jsonl", "its engine does not own the tokens: choose another"),
        (
            lambda run: run.append(rollout("a-0")),
            "sft",
            "no conversation to write: 1 rollout without a recorded call to a model",
        ),
        (filled(b"{", b"[]\n{"), "sft", "line 1 of 'RUN/rollouts.jsonl' is not a"),
        (filled(b'"agent":"mini"', b'"agent":5'), "sft", "the record of 'a-0' in"),
        (filled(), "sft --out RUN/run.json/out", "cannot be written: Not a directory; make room"),
        (filled(), "sft RUN", "the run 'RUN' is given twice; give each run once"),
    ],
)
def test_run_that_cannot_be_exported_is_an_error(
    run: RunDirectory, tmp_path: Path, fill: Callable[[RunDirectory], None], args: str, says: str
) -> None:
    fill(run)
    out = [] if "--out" in args else ["--out", tmp_path / "out"]
    done = invoke(run.path, *out, "--format", *args.replace("RUN", str(run.path)).split())
    assert says.replace("RUN", str(run.path)) in sentence(done)
    assert list(tmp_path.iterdir()) == [run.path]


def test_tasks_and_runs_are_chosen(tmp_path: Path, exported: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = new_run(tmp_path / "one"), new_run(tmp_path / "two")
    add(one, rollout("a-0"))
    add(two, rollout("b-0"))
    folder = exported(one, "sft", two.path)
    assert len((folder / "train.jsonl").read_text().splitlines()) == 2
    folder = exported(one, "sft", two.path, "--task", "b")
    (line,) = (folder / "train.jsonl").read_text().splitlines()
    assert '"rollout_id":"b-0"' in line
    assert "with the outcome resolved and one of 1 chosen task are here" in (folder / "README.md").read_text()
    assert invoke(one.path, "--format", "sft").output.startswith("one-sft: 1 conversation of 1 rollout, ")


def test_running_run_is_exported_as_far_as_it_is(run: RunDirectory, tmp_path: Path) -> None:
    add(run, rollout("a-0"))
    add(run, rollout("a-1", **INTERRUPTED))
    add(run, error("b-0", "gone"))
    run.append(rollout("b-0", minute=5))  # the last record of an id counts
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"id":"c-0","task')  # being written
    done = invoke(run.path, "--format", "sft", "--out", tmp_path / "out")
    assert "2 conversations of 2 rollouts" in done.output
    assert "left out: 1 interrupted, which a resume runs again" in done.output


def test_damaged_rollout_costs_no_other(run: RunDirectory, tmp_path: Path) -> None:
    for name in ("a-0", "b-0", "c-0"):
        add(run, rollout(name))
    (run.path / "rollouts" / "b-0" / "turns.jsonl").write_text("{}\n")
    done = invoke(run.path, "--format", "sft", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "2 conversations of 3 rollouts" in done.stdout
    assert "left out: 1 rollout with damaged files" in done.stdout
    assert done.stderr.startswith("damaged: b-0: line 1 of ")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "2 rollouts of 2 tasks" in text
    assert "- 1 rollout with damaged files" in text


@pytest.mark.parametrize(
    ("name", "method", "raised", "says"),
    [
        ("parquet", "close", OSError(errno.ENOSPC, "No space"), "'OUT' cannot be written: No space"),
        ("atif", "close", OSError(errno.ENOSPC, "No space"), "'OUT' cannot be written: No space"),
        ("sft", "add", PermissionError(errno.EACCES, "Denied", "turns"), "cannot read 'turns': Denied"),
        ("sft", "add", KeyboardInterrupt(), None),
    ],
)
def test_failed_export_leaves_nothing(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    method: str,
    raised: BaseException,
    says: str | None,
) -> None:
    add(run, rollout("a-0", ledger={"sampled": 5, "trainable": 5}))
    monkeypatch.setattr(format_named(name).open(), method, Mock(side_effect=raised))
    done = invoke(run.path, "--format", name, "--out", tmp_path / "out")
    assert done.exit_code != 0
    if says is not None:
        assert says.replace("OUT", str(tmp_path / "out")) in sentence(done)
    assert list(tmp_path.iterdir()) == [run.path]


def test_earlier_export_stays_where_the_new_one_fails(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(run, rollout("a-0"))
    out = tmp_path / "out"
    assert invoke(run.path, "--format", "sft", "--out", out).exit_code == 0
    before = (out / "train.jsonl").read_bytes()
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target == out and not path.name.endswith("-earlier"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    done = invoke(run.path, "--format", "atif", "--out", out, "--force")
    assert "cannot be written: Input/output error" in sentence(done)
    assert (out / "train.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet", "atif"])
def test_memory_does_not_grow_with_the_run(tmp_path: Path, exported: Export, name: str) -> None:
    few, many = new_run(tmp_path / "few"), new_run(tmp_path / "many")
    for run, count in ((few, 3), (many, 24)):
        for number in range(count):
            record = rollout(f"a-{number}", ledger={"sampled": 5, "trainable": 5})
            add(run, record, text=f"{number:02} " * 150_000)
    exported(few, name)  # imports, caches
    peaks = []
    for run in (few, many):
        tracemalloc.start()
        try:
            exported(run, name)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("name", ["sft", "atif"])
def test_ids_that_are_no_file_names_and_deep_arguments_cost_no_other(
    run: RunDirectory, tmp_path: Path, name: str
) -> None:
    add(run, rollout("a-0"))
    add(run, rollout("b-0"))
    turns = run.path / "rollouts" / "b-0" / "turns.jsonl"
    deep = b'{\\"a\\":' + b"[" * 300 + b"]" * 300 + b"}"
    turns.write_bytes(turns.read_bytes().replace(rb"{\"command\":\"ls\"}", deep))
    outside = tmp_path / "outside"
    run.append(rollout("c-0").model_copy(update={"id": str(outside)}))
    run.append(rollout("d-0").model_copy(update={"task_id": "../../zip"}))
    done = invoke(run.path, "--format", name, "--out", tmp_path / "out")
    assert "left out: 2 rollouts with damaged files" in done.stdout, done.exception
    assert f"{outside}: its id cannot be the name of a file" in done.stderr
    assert not outside.exists()


def test_folder_that_appeared_meanwhile_is_kept(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(run, rollout("a-0"))
    out, write = tmp_path / "out", SftWriter.close

    def close(writer: SftWriter) -> None:
        write(writer)
        out.mkdir()
        (out / "mine").write_text("x")

    monkeypatch.setattr(SftWriter, "close", close)
    done = invoke(run.path, "--format", "sft", "--out", out)
    assert "is not empty and no earlier export" in sentence(done)
    assert (out / "mine").read_text() == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_link_out_of_the_run_is_not_read(run: RunDirectory, tmp_path: Path, exported: Export) -> None:
    add(run, rollout("a-0"))
    (tmp_path / "key").write_text("private")
    (run.path / "rollouts" / "a-0" / "test.log").symlink_to(tmp_path / "key")
    assert not list(exported(run, "atif").rglob("test-stdout.txt"))
