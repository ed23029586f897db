"""The database: tables, views and what they lead to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from swe_core.api.grader import Grade
from swe_core.export import database as schema
from swe_core.report.training_metrics import read_metrics
from swe_core.rollout.run_directory import RunDirectory

from ..hub.runs import add, error, rollout
from .conftest import Export, invoke


@pytest.fixture(scope="module")
def database(
    training: RunDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    """The database of a training."""
    out = tmp_path_factory.mktemp("database") / "out"
    assert invoke(training.path, "--format", "sqlite", "--out", out).exit_code == 0
    with opened(out) as found:
        yield found


def opened(folder: Path) -> Any:
    return closing(sqlite3.connect(folder / "runs.sqlite"))


def rows(database: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    return database.execute(query).fetchall()


def test_rollouts_and_turns_are_those_of_the_run(
    training: RunDirectory, database: sqlite3.Connection
) -> None:
    records = training.rollouts()
    assert rows(database, "SELECT id, outcome, reward, sampled FROM rollouts ORDER BY rowid") == [
        (one.id, one.outcome, one.reward, one.ledger and one.ledger.sampled) for one in records
    ]
    turns = [(one.id, turn) for one in records for turn in training.turns(one.id)]
    found = rows(
        database, "SELECT rollout_id, turn, content, tool_calls, auxiliary FROM turns ORDER BY rowid"
    )
    assert [(name, index, content, auxiliary) for name, index, content, _, auxiliary in found] == [
        (name, turn.index, turn.reply and turn.reply["content"], turn.auxiliary) for name, turn in turns
    ]
    called = next(calls for *_, calls, _ in found if calls)
    assert orjson.loads(called)[0]["function"]["name"] == "bash"
    assert rows(database, "PRAGMA foreign_key_check") == []
    assert rows(database, "PRAGMA integrity_check") == [("ok",)]


def test_chains_are_counted_without_ids(training: RunDirectory, database: sqlite3.Connection) -> None:
    expected = [
        (one.id, index, chain.cause, len(chain), int(chain.completion_mask.sum()), list(chain.turns))
        for one in training.rollouts()
        for index, chain in enumerate(training.chains(one.id))
    ]
    found = rows(
        database, "SELECT rollout_id, chain, cause, tokens, trainable, turns FROM chains ORDER BY rowid"
    )
    assert [(*one[:-1], orjson.loads(one[-1])) for one in found] == expected
    versions = rows(database, "SELECT first_version, last_version, mean_logprob FROM chains")
    assert all(first <= last and mean < 0 for first, last, mean in versions)


def test_ledger_balances_in_sql(database: sqlite3.Connection) -> None:
    assert rows(database, """
        SELECT id FROM rollouts LEFT JOIN (SELECT run, rollout_id, SUM(tokens) AS lost FROM dropped
            GROUP BY run, rollout_id) AS d ON d.run = rollouts.run AND rollout_id = id
        WHERE sampled != trainable + COALESCE(lost, 0)
    """) == []  # fmt: skip
    assert ("undelivered",) in rows(database, "SELECT DISTINCT reason FROM dropped")


def test_metrics_are_those_of_the_trainer(training: RunDirectory, database: sqlite3.Connection) -> None:
    metrics = read_metrics(training.path)
    assert metrics is not None
    expected = {
        (one.name, int(step), float(value))
        for one in metrics.metrics
        for step, value in zip(one.steps, one.values, strict=True)
    }
    assert set(rows(database, "SELECT name, step, value FROM metrics")) == expected


def test_groups_show_which_had_no_spread(database: sqlite3.Connection) -> None:
    assert rows(database, "SELECT group_name, verdicts, mean_reward, all_alike FROM group_results") == [
        ("dask-10212-g3", 4, 1.0, 1),
        ("moto-7300-g1", 4, 0.0, 1),
        ("moto-7365-g0", 4, 0.5, 0),
        ("pydantic-8511-g2", 2, 0.5, 0),
    ]


def test_pass_rate_counts_verdicts_and_not_rewards(run: RunDirectory, exported: Export) -> None:
    part = Grade(resolved=False, reward=0.5)
    add(run, rollout("a-0", reward=0.25, unshaped_reward=1.0), tokens=False)
    add(run, rollout("a-1", outcome="unresolved", reward=0.5, grade=part), tokens=False)
    with opened(exported(run, "sqlite")) as database:
        assert rows(database, "SELECT verdicts, resolved, mean_reward, pass_rate FROM pass_rates") == [
            (2, 1, 0.375, 0.5)
        ]
        assert rows(database, "SELECT reward, unshaped_reward FROM rollouts ORDER BY id") == [
            (0.25, 1.0),
            (0.5, 0.5),
        ]


def test_views_count_tasks_errors_and_flips(run: RunDirectory, exported: Export) -> None:
    failed = Grade(
        resolved=False, reason="no", fail_to_pass={"t::a": "FAILED"}, pass_to_pass={"t::b": "PASSED"}
    )
    add(run, rollout("a-0"))
    add(run, rollout("a-1", outcome="unresolved", reward=0.0, grade=failed))
    add(run, error("a-2", "gone"), tokens=False)
    add(run, rollout("b-0"), tokens=False)
    with opened(exported(run, "sqlite")) as database:
        assert rows(
            database, "SELECT task_id, attempts, verdicts, resolved, pass_rate, errors FROM pass_rates"
        ) == [("a", 3, 2, 1, 0.5, 1), ("b", 1, 1, 1, 1.0, 0)]
        assert rows(database, "SELECT error_boundary, error_type, rollouts, example FROM errors") == [
            ("sandbox", "SandboxDied", 1, "gone")
        ]
        assert rows(database, "SELECT task_id, kind, test, passed, attempts FROM flips") == [
            ("a", "fail_to_pass", "t::a", 1, 2)
        ]
        assert rows(database, "SELECT reason FROM rollouts WHERE id = 'a-1'") == [("no",)]


def test_full_disk_is_an_error_of_the_system(
    run: RunDirectory, exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(run, rollout("a-0"))
    limited = schema.SCHEMA + "PRAGMA max_page_count = 30;"
    monkeypatch.setattr(schema, "SCHEMA", limited)
    for number in range(1, 30):
        add(run, rollout(f"a-{number}"), text="x" * 8000)
    done = invoke(run.path, "--format", "sqlite", "--out", tmp_path / "out")
    why = "cannot be written: database or disk is full; make room or give another --out"
    assert str(done.exception) == f"the export {str(tmp_path / 'out')!r} {why}"
    assert list(tmp_path.iterdir()) == [run.path]


def test_rollout_that_does_not_fit_costs_no_other(run: RunDirectory, tmp_path: Path) -> None:
    for name in ("a-0", "b-0", "c-0", "d-0"):
        add(run, rollout(name))
    folder = run.path / "rollouts"
    listed, doubled = folder / "b-0" / "turns.jsonl", folder / "c-0" / "turns.jsonl"
    listed.write_bytes(listed.read_bytes().replace(b'"Done."', b'"Done.","reasoning_content":["x"]'))
    doubled.write_bytes(doubled.read_bytes().replace(b'"index":1', b'"index":0'))
    file = run.path / "rollouts.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"prompt_tokens":7', b'"prompt_tokens":10000000000000000000')
    file.write_bytes(b"".join(lines))
    done = invoke(run.path, "--format", "sqlite", "--out", tmp_path / "out")
    assert "left out: 3 rollouts with damaged files" in done.stdout, done.exception
    with opened(tmp_path / "out") as database:
        assert rows(database, "SELECT id FROM rollouts") == [("a-0",)]
        assert rows(database, "SELECT DISTINCT rollout_id FROM turns") == [("a-0",)]
        assert rows(database, "PRAGMA integrity_check") == [("ok",)]
