"""The pages of the token ledger."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from swe_core.rollout.run_directory import RunDirectory
from swe_core.view.routes import page_at
from swe_core.view.site import NotShown, Site
from swe_testing.records import make_rollout, make_run
from swe_testing.sample_runs import sample_training

from .html import html, words


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="ledger-data"[^>]*>(.*?)</script>', page, re.S)
    assert found is not None
    value: dict[str, Any] = orjson.loads(found[1])
    return value


def test_ledger_is_the_sum_of_the_records(training: Path) -> None:
    ledgers = [one.ledger for one in RunDirectory.open(training).rollouts()]
    page = html(Site([training]), "run", "train", "ledger")
    sampled = sum(one.sampled for one in ledgers if one)
    trained = sum(one.trainable for one in ledgers if one)
    assert f"{sampled:,} sampled = {trained:,} trainable" in words(page)
    assert "It balances" in page
    data = embedded(page)
    assert sum(row[3] for row in data["rows"]) == sampled
    assert sum(row[4] for row in data["rows"]) == trained
    for row in data["rows"]:
        assert row[3] == row[4] + sum(tokens for _, tokens in row[5])
    assert set(data["reasons"]) == {"stale", "error", "aborted", "undelivered", "title"}
    assert 'href="?reason=undelivered"' in page


def test_trainer_accounts_for_the_trainable_tokens(training: Path) -> None:
    data = embedded(html(Site([training]), "run", "train", "ledger"))
    fates: dict[str, int] = {}
    for row in data["rows"]:
        if row[7] >= 0:
            fates[data["fates"][row[7]]] = fates.get(data["fates"][row[7]], 0) + row[4]
    rows = [orjson.loads(line) for line in (training / "trained.jsonl").read_bytes().splitlines()]
    assert fates["trained"] == sum(row["tokens"] for row in rows)
    assert set(fates) == {"trained", "no_spread"}


def test_rows_that_wait_are_a_part(tmp_path: Path) -> None:
    run = sample_training(tmp_path / "run")
    (run.path / "train.sqlite").unlink(missing_ok=True)
    with closing(sqlite3.connect(run.path / "train.sqlite")) as db:
        db.execute("CREATE TABLE tokens AS SELECT 'trained' AS fate, 1 AS tokens UNION SELECT 'waiting', 2")
        db.execute("CREATE TABLE progress AS SELECT 1 AS steps, 2 AS policy_version, 3 AS groups")
    (run.path / "training.json").write_bytes(b"{}")
    lines = (run.path / "trained.jsonl").read_bytes().splitlines(True)
    (run.path / "trained.jsonl").write_bytes(b"".join(lines[1:]))  # a row of the first rollout
    text = words(html(Site([run.path]), "run", "run", "ledger"))
    assert "1 step, policy version 2, 3 groups: " in text
    assert " trainable tokens = 1 trained + 2 waiting" in text
    assert "rest of trained rollouts" in text
    (run.path / "train.sqlite").unlink()
    assert "trainable tokens = " not in html(Site([run.path]), "run", "run", "ledger")


def test_run_without_tokens_has_no_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.append(make_rollout())
    site = Site([run.path])
    with pytest.raises(NotShown, match="has no token ledger"):
        html(site, "run", "run", "ledger")
    with pytest.raises(NotShown, match="has no tokens"):
        html(site, "run", "run", "rollout", "t-0", "ledger")


def test_rollout_ledger_goes_by_turn_and_is_proved(training: Path) -> None:
    page = html(Site([training]), "run", "train", "rollout", "moto-7365-g0-3", "ledger")
    text = words(page)
    (ledger,) = (one.ledger for one in RunDirectory.open(training).rollouts() if one.id == "moto-7365-g0-3")
    assert ledger is not None
    lost = ledger.dropped["undelivered"]
    assert f"{ledger.sampled} sampled = {ledger.trainable} trainable + {lost} undelivered" in text
    assert "Proved." in text
    assert f"turn 6 {lost} 0 {lost} undelivered" in text
    assert f"{ledger.trainable} of the {ledger.trainable} trainable tokens were trained." in text
    assert "tokens/?row=0&amp;step=1" in page


def test_turns_give_the_ledger_of_each_rollout(training: Path) -> None:
    site = Site([training])
    for rollout in RunDirectory.open(training).rollouts():
        page = page_at(site, ("run", "train", "rollout", rollout.id, "ledger"), {})
        assert isinstance(page.values, dict)
        assert rollout.ledger is not None
        assert page.values["sampled"] == rollout.ledger.sampled
        assert page.values["trainable"] == rollout.ledger.trainable
        assert {part.name: part.tokens for part in page.values["reasons"]} == rollout.ledger.dropped


def test_other_turns_do_not_prove_the_ledger(tmp_path: Path) -> None:
    run = sample_training(tmp_path / "run")
    file = run.path / "rollouts" / "moto-7300-g1-0" / "turns.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:-1]))
    text = words(html(Site([run.path]), "run", "run", "rollout", "moto-7300-g1-0", "ledger"))
    assert "Not proved: moto-7300-g1-0: its ledger is not what its turns on disk say" in text
