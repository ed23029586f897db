"""What a training did with its rollouts, and the records it is read from."""

from __future__ import annotations

from pathlib import Path

import orjson

from swe_core.rollout.training_records import read_trained
from swe_core.view.site import Site
from swe_core.view.staleness import training_facts
from swe_core.view.training import Training
from swe_testing.records import make_rollout, make_run
from swe_testing.sample_runs import sample_training

from .html import html, words


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
    lines = [
        {"step": step, **row, "version": version}
        for step, version in ((1, 1), (2, 2), (3, 3), (2, 4), (2, 4))
    ]
    (tmp_path / "trained.jsonl").write_bytes(
        b"".join(orjson.dumps(line) + b"\n" for line in lines[:2])
        + b"damaged\n"
        + b"".join(orjson.dumps(line) + b"\n" for line in lines[2:])
    )
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
