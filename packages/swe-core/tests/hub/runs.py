"""Runs to push: directories with finished rollouts, made without running anything."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from swe_core.api.engine import Usage
from swe_core.api.grader import Grade
from swe_core.api.records import Failure, Rollout
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_core.tokens.token_log import TokenLog
from swe_testing.hf.repos import Repo
from swe_testing.records import make_rollout, make_turn

from ..token_turns import make_sampled

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def new_run(path: Path, planned: int | None = None, **settings: Any) -> RunDirectory:
    """An empty run directory."""
    info = new_run_info({"swe-core": "0.1.0"}, {"run": {"tasks": "demo"}, **settings}, planned, [])
    return RunDirectory.create(path, info, Redactor())


def rollout(name: str, minute: int = 0, **fields: Any) -> Rollout:
    """A record."""
    known = {
        "grade": Grade(resolved=True, fail_to_pass={"t::a": "PASSED"}, pass_to_pass={"t::b": "PASSED"}),
        "usage": Usage(prompt_tokens=7, completion_tokens=3),
        "model": "owner/model",
        "agent": "mini",
        "sandbox": "box",
        "engine": "vllm",
        "seconds": 2.5,
        "started_at": START + timedelta(minutes=minute),
    }
    task, _, attempt = name.rpartition("-")
    return make_rollout(task, int(attempt), **{**known, **fields})


def error(name: str, message: str, minute: int = 0) -> Rollout:
    """A record of a rollout without a verdict."""
    failure = Failure(boundary="sandbox", type="SandboxDied", message=message)
    return rollout(name, minute, outcome="error", reward=None, grade=None, failure=failure)


def add(
    run: RunDirectory,
    record: Rollout,
    *,
    text: str = "look",
    patch: bytes | None = b"diff\n",
    tokens: bool = True,
) -> None:
    """Finish a rollout of two calls: the first calls a tool, the second says that it is done."""
    folder, book = run.folder(record.id), TokenLog()
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    first = {"role": "assistant", "content": "", "tool_calls": [call]}
    asked = {"role": "user", "content": text}
    result = {"role": "tool", "tool_call_id": "c1", "content": "a.py"}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    one = make_sampled([1, 2, 3], [4, 5], None)
    begin = {"messages": [asked], "params": {"tools": tools}, "reply": first}
    end = {"kept": 1, "messages": [first, result], "reply": {"role": "assistant", "content": "Done."}}
    turns = [(one, begin), (make_sampled([6], [7, 8, 9], one), end)]
    for index, (ids, fields) in enumerate(turns):
        kept = book.add(index, ids) if tokens else None
        folder.add_turn(make_turn(index, started_at=START, seconds=0.1, tokens=kept, **fields))
    if patch is not None:
        folder.put_patch(patch)
    folder.close()
    run.append(record)


def rows_of(repo: Repo) -> list[dict[str, Any]]:
    """Every row of a data set, in the order of its shards."""
    shards = sorted(name for name in repo.files if name.endswith(".parquet"))
    return [row for name in shards for row in pq.read_table(io.BytesIO(repo.files[name])).to_pylist()]


def ids_of(repo: Repo) -> list[str]:
    """The id of every row, sorted."""
    return sorted(row["id"] for row in rows_of(repo))
