"""The finished rollouts of a run that goes on, and the facts that they give."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from swe_core.errors import UsageError
from swe_core.report.facts import facts_of, why
from swe_core.rollout.run_directory import RunDirectory
from swe_core.view.heads import Heads
from swe_testing.records import make_rollout, make_run
from swe_testing.sample_runs import WordTokenizer, add_sample, sample_training


def read(path: Path) -> Heads:
    heads = Heads(path)
    heads.refresh()
    return heads


def test_heads_give_the_facts_of_the_records(training: Path) -> None:
    records, heads = RunDirectory.open(training).rollouts(), read(training)
    assert facts_of(heads.all()) == facts_of(records)
    assert [why(head) for head in heads.all()] == [why(record) for record in records]
    assert [heads.record(head) for head in heads.all()] == records


def test_refresh_reads_what_was_added(tmp_path: Path) -> None:
    run = sample_training(tmp_path / "run")
    heads = read(run.path)
    version = heads.version
    heads.refresh()
    assert heads.version == version
    file = run.path / "rollouts.jsonl"
    whole = file.read_bytes()
    add_sample(run, WordTokenizer(), "late-g9-0", "late", 0, "resolved")
    line = file.read_bytes()[len(whole) :]
    file.write_bytes(whole + line[:50])  # half a line
    heads.refresh()
    assert heads.get("late-g9-0") is None
    file.write_bytes(whole + line)
    heads.refresh()
    assert heads.get("late-g9-0") is not None
    assert heads.version > version


def test_group_is_that_of_the_training_or_the_task(tmp_path: Path) -> None:
    names = {"a-1-g12-3": "g12", "a-1-g12-3-2": "g12", "a-1-0": "a-1", "b-g3-0": "a-1"}
    run = make_run(tmp_path / "run")
    for name in names:
        run.append(make_rollout("a-1", id=name))
    assert {head.id: head.group for head in read(run.path).all()} == names


@pytest.mark.parametrize("change", [{"id": "../x"}, {"id": 1}, {"task_id": "a/b"}, {"id": "x" * 256}])
def test_line_of_odd_values_is_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    run = make_run(tmp_path / "run")
    run.append(make_rollout())
    file = run.path / "rollouts.jsonl"
    with file.open("ab") as added:
        added.write(orjson.dumps(orjson.loads(file.read_bytes().splitlines()[0]) | change) + b"\n")
    with pytest.raises(UsageError, match="is damaged at byte"):
        read(run.path)
