"""Rollouts as rows of a Parquet file with a fixed schema (docs/internals/hub.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from swe_core.api.chain import Chain
from swe_core.api.records import Rollout, Turn, requests_of
from swe_core.hub.pushed_run import public_name
from swe_core.interception.dialects.base import Target
from swe_core.interception.dialects.chat import ChatCompletions
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.redaction import MARK, Redactor
from swe_core.tokens.chains import chains_of

_TESTS = pa.list_(pa.struct([("test", pa.string()), ("status", pa.string())]))
_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning_content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
    ]
)
CHAIN = pa.struct(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("completion_mask", pa.list_(pa.bool_())),
        ("old_log_probs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("turns", pa.list_(pa.int32())),
        ("cause", pa.string()),
    ]
)
"""A training row; the fields are those of `swe_core.api.chain.Chain`."""
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("run", pa.string()),
        ("task_id", pa.string()),
        ("attempt", pa.int32()),
        ("agent", pa.string()),
        ("sandbox", pa.string()),
        ("engine", pa.string()),
        ("model", pa.string()),
        ("outcome", pa.string()),
        ("reward", pa.float64()),
        ("error", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
        ("tools", pa.string()),
        ("patch", pa.string()),
        ("reason", pa.string()),
        ("fail_to_pass", _TESTS),
        ("pass_to_pass", _TESTS),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("seconds", pa.float64()),
        ("chains", pa.list_(CHAIN)),
        ("turns", pa.list_(pa.string())),
        ("record", pa.string()),
    ]
)


def shard(run: RunDirectory, name: str, rollouts: Sequence[Rollout], redactor: Redactor) -> bytes:
    """Return a Parquet file with one row for each of `rollouts`, finished ones of `run`.

    Args:
        name: Name of the run, `swe_core.hub.pushed_run.run_name`.

    Raises:
        UsageError: A file of a rollout is damaged.
        LedgerError: The tokens of a rollout do not fit together.
    """
    rows = [_row(run, name, rollout, redactor) for rollout in rollouts]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink, compression="zstd")
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types


def _row(run: RunDirectory, name: str, rollout: Rollout, redactor: Redactor) -> dict[str, Any]:
    turns = run.turns(rollout.id)
    messages, tools = _conversation(turns)
    patch = run.patch(rollout.id)
    rollout = rollout.model_copy(update={"model": public_name(rollout.model)})
    grade = rollout.grade
    row: dict[str, Any] = {
        **{key: getattr(rollout, key) for key in SCHEMA.names if key in _SAME},
        "run": name,
        "error": rollout.failure and rollout.failure.message,
        "messages": messages,
        "tools": tools,
        "patch": None if patch is None else patch.decode(errors="replace"),
        "reason": grade and grade.reason,
        "fail_to_pass": _statuses(grade.fail_to_pass if grade else None),
        "pass_to_pass": _statuses(grade.pass_to_pass if grade else None),
        "prompt_tokens": rollout.usage.prompt_tokens,
        "completion_tokens": rollout.usage.completion_tokens,
        "turns": [_json(turn.model_dump(mode="json", exclude={"tokens"})) for turn in turns],
        "record": _json(rollout.model_dump(mode="json")),
    }
    row = {key: redactor.value(value) for key, value in row.items()}
    # Ids cannot be redacted, and they contain the secret too.
    secret = any(MARK in turn for turn in row["turns"])
    row["chains"] = None if secret else [_chain(chain) for chain in chains_of(turns)] or None
    return row


_SAME = (
    *("id", "task_id", "attempt", "agent", "sandbox", "engine", "model", "outcome", "reward"),
    *("started_at", "seconds"),
)
"""Columns that are copied from the record."""


_CHAT = ChatCompletions()


def _conversation(turns: Sequence[Turn]) -> tuple[list[Mapping[str, Any]] | None, str | None]:
    """Return the conversation of the last answered call, with the reply, and its tools as JSON."""
    for turn, body in reversed(list(zip(turns, requests_of(turns), strict=True))):
        if turn.reply is not None and turn.auxiliary is None:
            whole = {"messages": [*body["messages"], turn.reply], "tools": body.get("tools")}
            request = _CHAT.parse(orjson.dumps(whole), Target(_CHAT.routes[0]))
            return list(request.messages), None if request.tools is None else _json(request.tools)
    return None, None


def _chain(chain: Chain) -> dict[str, Any]:
    return {name: getattr(chain, name) for name in CHAIN.names}


def _statuses(tests: Mapping[str, str] | None) -> list[dict[str, str]] | None:
    return None if tests is None else [{"test": test, "status": status} for test, status in tests.items()]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
