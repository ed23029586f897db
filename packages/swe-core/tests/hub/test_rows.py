"""A rollout as a row: its columns, their types, and what is withheld."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq

from swe_core.hub.pushed_run import public_name, run_name
from swe_core.hub.rows import SCHEMA, shard
from swe_core.hub.secrets import push_redactor
from swe_core.rollout.run_directory import RunDirectory

from .runs import add, error, rollout


def rows(run: RunDirectory, *known: str) -> list[dict[str, Any]]:
    data = shard(run, run_name(run.info), run.rollouts(), push_redactor(known, environment={}))
    table = pq.read_table(io.BytesIO(data))
    assert table.schema.equals(SCHEMA)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_rollout_is_a_row(run: RunDirectory) -> None:
    record = rollout("t__a-1-0")
    add(run, record)
    (row,) = rows(run)
    assert (row["id"], row["task_id"], row["attempt"]) == ("t__a-1-0", "t__a-1", 0)
    assert row["run"] == run_name(run.info)
    assert (row["outcome"], row["reward"], row["error"], row["patch"]) == ("resolved", 1.0, None, "diff\n")
    assert row["fail_to_pass"] == [{"test": "t::a", "status": "PASSED"}]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (7, 3)
    assert row["started_at"] == record.started_at
    assert [one["content"] for one in row["messages"]] == ["look", "", "a.py", "Done."]
    (call,) = row["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "bash", "arguments": '{"command":"ls"}'}
    assert json.loads(row["tools"])[0]["function"]["name"] == "bash"
    assert json.loads(row["record"]) == record.model_dump(mode="json")
    assert [json.loads(turn)["index"] for turn in row["turns"]] == [0, 1]
    (chain,) = row["chains"]
    assert chain["input_ids"] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert chain["completion_mask"] == [False] * 3 + [True] * 2 + [False] + [True] * 3
    assert chain["old_log_probs"][3:5] == [-0.5, -0.5]
    assert (chain["turns"], chain["versions"][3], chain["cause"]) == ([0, 1], 0, "start")


def test_shard_always_has_all_columns(run: RunDirectory) -> None:
    """Shards with null columns must have the types of the others."""
    run.folder("t-0").close()  # an error before the first call, without a patch
    run.append(error("t-0", "the sandbox is gone"))
    (row,) = rows(run)
    assert (row["reward"], row["patch"], row["messages"], row["chains"]) == (None, None, None, None)
    assert (row["error"], row["turns"], row["fail_to_pass"]) == ("the sandbox is gone", [], None)


def test_failed_last_call_is_not_in_the_conversation(run: RunDirectory) -> None:
    add(run, rollout("t-0"), tokens=False)
    path = run.path / "rollouts" / "t-0" / "turns.jsonl"
    lines = path.read_bytes().splitlines()
    last = json.loads(lines[1]) | {"reply": None, "error": "no"}
    path.write_bytes(lines[0] + b"\n" + json.dumps(last).encode() + b"\n")
    (row,) = rows(run)
    assert [one["role"] for one in row["messages"]] == ["user", "assistant"]
    assert len(row["turns"]) == 2


def test_ids_that_spell_a_secret_are_withheld(run: RunDirectory) -> None:
    """Ids cannot be redacted, and decoding them gives the text back."""
    add(run, rollout("t-0"), text="the key is known-to-the-push")
    add(run, rollout("t-1"), text="no key here")
    run.redactor.add("known-to-the-run")
    add(run, rollout("t-2"), text="the key is known-to-the-run")
    assert [row["chains"] is None for row in rows(run, "known-to-the-push")] == [True, False, True]


def test_public_name_hides_local_paths() -> None:
    for name, public in (
        *(("owner/model", "owner/model"), ("/home/alice/models/mine", "mine")),
        *(("alice/rows.jsonl", "rows.jsonl"), ("", "")),
    ):
        assert public_name(name) == public
