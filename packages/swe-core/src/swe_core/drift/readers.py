"""Recorded conversations from files, each format by one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from swe_core.api.messages import Message
from swe_core.api.records import requests_of
from swe_core.drift.recorded import RecordedConversation, RecordedTurn, turns_of
from swe_core.errors import UsageError
from swe_core.interception.dialects.base import BadRequest, Dialect, Target
from swe_core.interception.dialects.chat import ChatCompletions
from swe_core.interception.dialects.messages import Messages
from swe_core.interception.dialects.responses import Responses
from swe_core.rollout.run_directory import RUN_FILE, RunDirectory

Rows = Sequence[Any]
"""The JSON values of a file: one, or those of its lines."""
_CHAT, _MESSAGES, _RESPONSES = ChatCompletions(), Messages(), Responses()
_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "custom_tool_call"})


def read(path: Path, name: str | None = None) -> list[RecordedConversation]:
    """Return the conversations of a run directory or a file.

    Args:
        name: One of `FORMATS`; None finds it from the content.

    Raises:
        UsageError: The file cannot be read, or is not of the format.
    """
    if path.is_dir() or name == "run":
        return list(_run(path))
    rows = _rows(path)
    if name is None:
        name = next((one for one, is_it in _MARKS.items() if is_it(list(rows.values()))), None)
    if name is None:
        raise UsageError(
            f"{str(path)!r} is no conversation that is known: expected a run directory, or a file of one of "
            f"the formats {', '.join(_READERS)}; name it with --format"
        )
    found: list[RecordedConversation] = []
    for line, part in _parts(name, rows):
        try:
            conversations = [turns for turns in _READERS[name](part) if turns]
        except BadRequest as error:
            raise UsageError(f"{_not(path, name, line)}: {error}") from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            missing = f"it has no {error}; " if isinstance(error, KeyError) else ""
            raise UsageError(f"{_not(path, name, line)}: {missing}expected {_EXPECTED[name]}") from None
        for turns in conversations:
            found.append(RecordedConversation(f"{path}:{len(found) + 1}" if found else str(path), turns))
    if not found:
        raise UsageError(f"{str(path)!r} has no reply of an assistant, so there is nothing to replay")
    return found


def _rows(path: Path) -> dict[int, Any]:
    """Return line → JSON value of a file with a value a line; a file that is one value has it at line 1."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read ({error.strerror}): name a file or a run") from None
    try:
        return {1: orjson.loads(data)}
    except orjson.JSONDecodeError as error:
        whole = error
    rows: dict[int, Any] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows[number] = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            where, why = (f"line {number}", error) if rows else ("it", whole)
            raise UsageError(f"{str(path)!r} is no JSON: {where}: {why}") from None
    return rows


def _parts(name: str, rows: Mapping[int, Any]) -> list[tuple[int | None, Rows]]:
    """Return what a reader gets at once: each line, with its number, or all lines, with None."""
    values = list(rows.values())
    if not all(map(_is_message, values)):
        return [(line if len(rows) > 1 else None, [value]) for line, value in rows.items()]
    return [(None, values)]


def _not(path: Path, name: str, line: int | None) -> str:
    return f"{str(path)!r} is not of the format {name}{'' if line is None else f': line {line}'}"


def _run(path: Path) -> Iterator[RecordedConversation]:
    """Our own runs: one conversation a rollout, with its sampled ids."""
    if not (path / RUN_FILE).exists():
        raise UsageError(f"{str(path)!r} is no run directory: it has no {RUN_FILE}")
    run = RunDirectory.open(path)
    for rollout in run.rollouts():
        turns = run.turns(rollout.id)
        found = []
        for turn, body in zip(turns, requests_of(turns), strict=True):
            if turn.reply is None:
                continue
            parsed = _parsed(_CHAT, {**body, "messages": [*body["messages"], turn.reply]})
            tokens = turn.tokens
            found.append(
                RecordedTurn(
                    parsed[0][:-1],
                    parsed[1],
                    parsed[0][-1],
                    sampled=tokens.completion if tokens is not None else None,
                    cut=turn.finish_reason == "length",
                    dropped=turn.auxiliary or (tokens.dropped if tokens is not None else None),
                )
            )
        if found:
            yield RecordedConversation(rollout.id, found)


def _parsed(dialect: Dialect, body: Mapping[str, Any]) -> tuple[Sequence[Message], Any]:
    """Return the canonical messages and tools of a request. It may end with a reply."""
    asked = dialect.parse(orjson.dumps(body), Target(dialect.routes[-1]))
    return asked.messages, asked.tools


def _chat(rows: Rows) -> Iterator[list[RecordedTurn]]:
    """Message lists of OpenAI: a list, or an object with `messages` and perhaps `tools`, in each row."""
    if rows and all(_is_message(row) for row in rows):  # one message a line
        rows = [list(rows)]
    for row in rows:
        body = (
            {"messages": row}
            if isinstance(row, list)
            else {"messages": row["messages"], "tools": row.get("tools")}
        )
        yield turns_of(*_parsed(_CHAT, body))


def _responses(rows: Rows) -> Iterator[list[RecordedTurn]]:
    """Items of Responses: a list, or an object with `input` and perhaps `output`, `tools`, `instructions`."""
    for row in rows:
        body = {"input": row} if isinstance(row, list) else row
        items = body["input"]
        items = [{"type": "message", "role": "user", "content": items}] if isinstance(items, str) else items
        kept = {key: body[key] for key in ("tools", "instructions") if body.get(key)}
        yield turns_of(*_parsed(_RESPONSES, {"input": [*items, *(body.get("output") or ())], **kept}))


def _anthropic(rows: Rows) -> Iterator[list[RecordedTurn]]:
    """Messages of Anthropic: an object with `messages` and perhaps `system` and `tools`."""
    for row in rows:
        body = {"messages": row} if isinstance(row, list) else row
        kept = {key: body[key] for key in ("system", "tools") if body.get(key)}
        yield turns_of(*_parsed(_MESSAGES, {"messages": body["messages"], **kept}))


def _first(rows: Rows) -> Any:
    return rows[0] if rows else None


def _is_message(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("role"), str) and "messages" not in row


def _messages_of(row: object) -> Sequence[Any]:
    given = row.get("messages") if isinstance(row, dict) else row
    return given if isinstance(given, list) else ()


def _is_anthropic(row: object) -> bool:
    """Whether a body has what only Anthropic's has: a `system` beside the messages, or its blocks."""
    if isinstance(row, dict) and "system" in row and "messages" in row:
        return True
    blocks = (
        block
        for message in _messages_of(row)
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
    )
    return any(
        isinstance(one, dict) and one.get("type") in ("tool_use", "tool_result", "thinking") for one in blocks
    )


def _is_items(row: object) -> bool:
    if isinstance(row, dict):
        return "input" in row and "messages" not in row
    return isinstance(row, list) and any(isinstance(one, dict) and one.get("type") in _ITEMS for one in row)


_MARKS: Mapping[str, Callable[[Rows], bool]] = {
    "responses": lambda rows: _is_items(_first(rows)),
    "anthropic": lambda rows: _is_anthropic(_first(rows)),
    "openai": lambda rows: bool(_messages_of(_first(rows))) or (bool(rows) and all(map(_is_message, rows))),
}
"""Format → whether a file looks like it, the most telling first."""
_READERS: Mapping[str, Callable[[Rows], Iterator[list[RecordedTurn]]]] = {
    "openai": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
}
_EXPECTED = {
    "openai": "a list of chat messages, or an object with `messages`",
    "responses": "a list of items, or an object with `input`",
    "anthropic": "an object with `messages`",
}
FORMATS = ("run", *_READERS)
"""Names of the formats."""
