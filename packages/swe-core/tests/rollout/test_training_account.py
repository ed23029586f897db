"""What became of the tokens of a training, by its journal."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from swe_core.api.records import Ledger
from swe_core.cli.report import report
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.rollout.training_account import TrainingAccount, training_account
from swe_core.system.redaction import Redactor
from swe_testing.records import make_rollout

LEDGERS = [
    Ledger(sampled=12, trainable=10, dropped={"forced": 2}),
    Ledger(sampled=30, trainable=30),
    Ledger(sampled=5, trainable=0, dropped={"error": 5}),
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", new_run_info({}, {}, None, []), Redactor())
    for number, ledger in enumerate(LEDGERS):
        run.append(make_rollout(id=f"t-{number}", ledger=ledger))
    return run


@pytest.fixture
def journal(run: RunDirectory) -> Iterator[sqlite3.Connection]:
    """One with the views that readers need, as a trainer has it open."""
    with closing(sqlite3.connect(run.path / "train.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE tokens (fate, tokens)")
        db.execute("CREATE TABLE progress (steps, policy_version, groups)")
        db.execute("INSERT INTO progress VALUES (3, 4, 2)")
        yield db


def fates(db: sqlite3.Connection, **tokens: int) -> None:
    db.execute("DELETE FROM tokens")
    db.executemany("INSERT INTO tokens VALUES (?, ?)", tokens.items())


def found(run: RunDirectory, **more: bool) -> TrainingAccount:
    account = training_account(run.path, LEDGERS, **more)
    assert account is not None
    return account


def test_training_that_runs_or_was_killed_has_an_account(
    run: RunDirectory, journal: sqlite3.Connection
) -> None:
    fates(journal, trained=10, stale=4)
    account = found(run)
    assert (account.steps, account.policy_version, account.groups) == (3, 4, 2)
    assert (account.sampled, account.trainable, account.trained) == (47, 40, 10)
    assert account.left_out == {"stale": 4}
    assert account.waiting == 26  # attempts that are not in the journal yet
    assert account.unaccounted == 0
    assert account.sentence() == (
        "3 steps, policy version 4, 2 groups: 40 trainable tokens = 10 trained + 26 waiting + 4 stale"
    )


def test_after_the_end_every_token_must_be_in_the_journal(
    run: RunDirectory, journal: sqlite3.Connection
) -> None:
    fates(journal, trained=10, waiting=20, no_spread=4)
    (run.path / "training.json").write_text("{}")
    account = found(run, ended=True)
    assert account.unaccounted == 6
    assert "6 unaccounted for" in account.sentence()
    tokens = account.summary()["tokens"]
    assert tokens.pop("dropped") == {"forced": 2, "error": 5, "no_spread": 4}
    assert tokens == {"sampled": 47, "trained": 10, "waiting": 20, "unaccounted": 6}


def test_report_says_it_in_each_form(run: RunDirectory, journal: sqlite3.Connection, tmp_path: Path) -> None:
    fates(journal, trained=40)
    sentence = "3 steps, policy version 4, 2 groups: 40 trainable tokens = 40 trained + 0 waiting"

    def said(*args: str) -> str:
        return CliRunner().invoke(report, [str(run.path), *args]).output

    assert f"Training: {sentence}" in " ".join(said().split())
    assert json.loads(said("--json"))["training"] == found(run).summary()
    said("--html", str(tmp_path / "page.html"))
    assert sentence in (tmp_path / "page.html").read_text()


def test_evaluation_has_none_and_damage_is_no_error(run: RunDirectory, tmp_path: Path) -> None:
    assert training_account(run.path, LEDGERS) is None
    assert json.loads(CliRunner().invoke(report, [str(run.path), "--json"]).output)["training"] is None
    (run.path / "train.sqlite").write_bytes(b"no database at all" * 99)
    assert training_account(run.path, LEDGERS) is None
    (run.path / "train.sqlite").unlink()
    (run.path / "train.sqlite").symlink_to(tmp_path / "elsewhere")
    assert training_account(run.path, LEDGERS) is None


def test_reader_leaves_nothing_beside_a_closed_journal_and_counts_rollouts_from_before_a_restore(
    run: RunDirectory, journal: sqlite3.Connection
) -> None:
    fates(journal, trained=40)
    journal.close()
    line = make_rollout(id="t-9", ledger=Ledger(sampled=1, trainable=1)).model_dump_json()
    (run.path / "earlier.jsonl").write_text(f"{line}\n{{damaged\n")
    before = sorted(path.name for path in run.path.iterdir())
    assert (found(run).trainable, found(run).trained) == (41, 40)
    assert sorted(path.name for path in run.path.iterdir()) == before
