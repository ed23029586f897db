"""Rows as JSON lines and Parquet, read back by `datasets` and pyarrow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import read_groups

from ..hub.runs import add, rollout
from .conftest import Export, invoke

ARRAYS = ("input_ids", "completion_mask", "old_log_probs", "versions")


def loaded(folder: Path, cache: Path) -> list[dict[str, Any]]:
    """The rows as `datasets` reads a folder with a data card."""
    from datasets import load_dataset  # takes seconds, in each worker that collects

    return list(load_dataset(str(folder), split="train", cache_dir=str(cache)))


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_rows_are_the_chains_of_the_run(
    training: RunDirectory, exported: Export, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swe_core.export.rows._BATCH", 1000)
    rows = loaded(exported(training, name), tmp_path / "cache")
    scored = [one for one in training.rollouts() if one.reward is not None]
    expected = [(one, index, chain) for one in scored for index, chain in enumerate(training.chains(one.id))]
    for row, (one, index, chain) in zip(rows, expected, strict=True):
        assert (row["rollout_id"], row["row"]) == (one.id, index)
        for array in ARRAYS:
            there = getattr(chain, array)
            assert np.array_equal(np.array(row[array], there.dtype), there), (row["rollout_id"], array)
        assert (tuple(row["turns"]), row["cause"]) == (chain.turns, chain.cause)
        assert (row["task_id"], row["attempt"], row["reward"]) == (one.task_id, one.attempt, one.reward)
        assert (row["outcome"], row["model"], row["agent"]) == (one.outcome, one.model, one.agent)


def test_rows_of_a_training_have_groups_and_advantages(training: RunDirectory, exported: Export) -> None:
    table = pq.read_table(exported(training, "parquet") / "train.parquet")
    groups = {
        one.rollout_id: (f"{group.task_id}-g{group.group}", one.advantage)
        for group in read_groups(training.path)
        for one in group.members
    }
    rows = table.select(["rollout_id", "group", "advantage"]).to_pylist()
    assert all(groups[row["rollout_id"]] == (row["group"], row["advantage"]) for row in rows)
    assert {advantage is None for _, advantage in groups.values()} == {True, False}


def test_rows_of_an_evaluation_are_grouped_by_task(run: RunDirectory, exported: Export) -> None:
    for name in ("a-g1-b-0", "a-g1-b-1", "c-0"):
        add(run, rollout(name, ledger={"sampled": 5, "trainable": 5}))
    lines = (exported(run, "jsonl") / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["group"] for row in rows] == ["a-g1-b", "a-g1-b", "c"]
    assert {row["advantage"] for row in rows} == {None}


def test_rows_of_rollouts_with_a_secret_are_left_out(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids cannot be redacted, and decoding them gives the text back."""
    monkeypatch.setenv("SSH_SECRET", "ssh-secret-of-the-user")
    ledger = {"sampled": 5, "trainable": 5}
    add(run, rollout("a-0", ledger=ledger), text="the key is ssh-secret-of-the-user")
    add(run, rollout("a-1", ledger=ledger), text="nothing to hide")
    done = invoke(run.path, "--format", "jsonl", "--out", tmp_path / "out")
    assert "1 row of 2 rollouts" in done.output
    assert "left out: 1 rollout whose calls contained a secret, because ids spell it" in done.output
    (line,) = (tmp_path / "out" / "train.jsonl").read_text().splitlines()
    assert json.loads(line)["rollout_id"] == "a-1"


@pytest.mark.parametrize("name", ["jsonl", "sft"])
def test_held_out_rollouts_are_left_out_of_what_is_trained_on(
    training: RunDirectory, tmp_path: Path, exported: Export, name: str
) -> None:
    copy = RunDirectory.open(shutil.copytree(training.path, tmp_path / "copy"))
    *others, last = (one for one in training.rollouts() if one.outcome == "resolved")
    lines = [one.model_dump(mode="json") for one in training.rollouts()]
    for line in lines:
        line["evaluation"] = 5 if line["id"] == last.id else None
    (copy.path / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = exported(copy, name, "--outcome", "resolved")
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert {row["rollout_id"] for row in rows} == {one.id for one in others}
    assert "1 rollout of an evaluation while training" in (out / "README.md").read_text()
