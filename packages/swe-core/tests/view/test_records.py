"""What is read of a run that goes on: its finished rollouts, and what a training did with them."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from swe_core.errors import UsageError
from swe_core.report.facts import facts_of, why
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import read_trained
from swe_core.view.heads import Heads
from swe_core.view.site import Site
from swe_core.view.staleness import training_facts
from swe_core.view.training import Training
from swe_testing.records import make_rollout, make_run
from swe_testing.sample_runs import WordTokenizer, add_sample, sample_training

from .html import html, words


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


def test_line_of_odd_values_is_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.append(make_rollout())
    file = run.path / "rollouts.jsonl"
    whole = file.read_bytes()
    for change in ({"id": "../x"}, {"id": 1}, {"task_id": "a/b"}, {"id": "x" * 256}):
        file.write_bytes(whole + orjson.dumps(orjson.loads(whole) | change) + b"\n")
        with pytest.raises(UsageError, match="is damaged at byte"):
            read(run.path)


def test_rows_and_groups_are_read_as_they_grow(tmp_path: Path) -> None:
    run = sample_training(tmp_path / "run")
    file = run.path / "trained.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    training = Training(run.path)
    training.refresh()
    assert len(training.rows) == 3
    version = training.version
    training.refresh()
    assert training.version == version
    file.write_bytes(whole)
    training.refresh()
    assert training.version > version
    assert [(row.step, row.rollout_id, row.row, row.tokens) for row in training.rows] == [
        (row.step, row.rollout_id, row.row, row.tokens) for row in read_trained(run.path)
    ]
    assert set(training.groups) == {"g0", "g1", "g2", "g3"}
    file.write_bytes(lines[0])  # replaced
    training.refresh()
    assert len(training.rows) == 1


def test_rows_of_lost_weights_are_left_out(tmp_path: Path) -> None:
    row = {"version": 1, "rollout_id": "t-g0-0", "row": 0, "advantage": 1.0, "weight": 1.0, "tokens": 3,
           "logprobs": [-1.0, None, -0.5], "clipped": 0}  # fmt: skip
    steps = ((1, 1), (2, 2), (3, 3), (2, 4), (2, 4))
    lines = [orjson.dumps({**row, "step": step, "version": version}) for step, version in steps]
    (tmp_path / "trained.jsonl").write_bytes(b"\n".join([*lines[:2], b"damaged", *lines[2:], b""]))
    training = Training(tmp_path)
    training.refresh()
    assert [(one.step, one.version) for one in training.rows] == [(1, 1), (2, 4), (2, 4)]
    assert [(one.step, one.version) for one in read_trained(tmp_path)] == [(1, 1), (2, 4), (2, 4)]
    assert len(training.rows_of("t-g0-0")) == 3


def test_staleness_is_counted_from_the_first_call(training: Path) -> None:
    run = Site([training]).run("train")
    facts = training_facts(run, list(run.heads.all()))
    assert facts is not None
    rows = read_trained(training)
    assert [(one.updates, one.rows, one.tokens) for one in facts.behind] == [
        (1, len(rows), sum(row.tokens for row in rows))
    ]
    assert (facts.closed, facts.unread, facts.unknown) == (4, 0, 0)
    assert [(one.reason, list(one.groups)) for one in facts.skipped] == [("no_spread", ["g1", "g3"])]
    (cancelled,) = facts.cancelled
    assert (cancelled.reason, cancelled.rollouts, cancelled.last[0].id) == ("stale", 1, "pydantic-8511-g2-2")


def test_rollout_without_calls_has_no_version(tmp_path: Path) -> None:
    run = sample_training(tmp_path / "run")
    for file in (run.path / "rollouts").glob("moto-7365-g0-*/turns.jsonl"):
        file.unlink()
    shown = Site([run.path]).run("run")
    facts = training_facts(shown, list(shown.heads.all()))
    assert facts is not None
    assert facts.unknown == sum("g0" in row.rollout_id for row in read_trained(run.path))


def test_run_page_of_a_training_has_the_facts(training: Path, tmp_path: Path) -> None:
    text = words(html(Site([training]), "run", "train"))
    assert "4 groups completed, of which 2 were skipped as no_spread : g1 , g3" in text
    run = make_run(tmp_path / "run")
    run.append(make_rollout())
    assert "Staleness" not in html(Site([run.path]), "run", "run")
