"""Session files of Pi: a tree of entries, as version 1.5.2 reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_core.api.messages import Message, dumps
from swe_core.drift.recorded import RecordedTurn

Row = Mapping[str, Any]
_TOOL = ("name", "description", "parameters")


def turns_of_pi(rows: Sequence[Row]) -> list[RecordedTurn]:
    """Return the turns of every branch, in the order in which the model replied.

    The request of a reply is the path to it from the first entry. A summary stands without the sentence that
    Pi puts around it.

    Raises:
        KeyError: An entry lacks a field of the format.
    """
    known: dict[object, _Entry] = {}
    turns: list[RecordedTurn] = []
    for row in rows:
        if row.get("type") == "session" or "id" not in row:
            continue
        parent = known.get(row.get("parentId"))
        if _is_reply(row):
            path = _path(parent)
            turns.append(RecordedTurn(_messages(path), _tools(path), _message(row["message"])))
        known.setdefault(row["id"], _Entry(row, parent))
    return turns


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry and the one before it in its branch, which stands earlier in the file."""

    row: Row
    parent: _Entry | None


def _path(last: _Entry | None) -> list[Row]:
    """Return the entries from the first one to the last."""
    path: list[Row] = []
    while last is not None:
        path.append(last.row)
        last = last.parent
    path.reverse()
    return path


def _is_reply(row: Row) -> bool:
    return row.get("type") == "message" and row["message"]["role"] == "assistant" and not _failed(row)


def _failed(row: Row) -> bool:
    """Return whether a reply failed: Pi does not send it again."""
    return row["message"].get("stopReason") in ("error", "aborted")


def _messages(path: Sequence[Row]) -> list[Message]:
    """Return what Pi sends for a path."""
    messages, entries = _since_compaction(path)
    edits = {row["targetId"]: row["replacement"] for row in entries if row.get("type") == "context_edit"}
    for row in entries:
        edit = edits.get(row["id"], {})
        if edit is not None:  # an edit to null removes the message
            messages += _shown(row, edit)
    return messages


def _since_compaction(path: Sequence[Row]) -> tuple[list[Message], list[Row]]:
    """Return the messages that the last compaction begins with, and the entries that Pi still shows."""
    at = max((at for at, row in enumerate(path) if row.get("type") == "compaction"), default=None)
    if at is None:
        return [], [*path]
    before, compaction, after = path[:at], path[at], path[at + 1 :]
    system = [row["message"] for row in before if _is_system(row)]
    if compaction.get("systemMessage"):
        system = [compaction["systemMessage"]]
    summary: Message = {"role": "user", "content": compaction["summary"]}
    ids = [row["id"] for row in before]
    first = compaction.get("firstKeptEntryId")
    kept = before[ids.index(first) :] if first in ids else []
    return [*map(_message, system), summary], [*(row for row in kept if not _is_system(row)), *after]


def _is_system(row: Row) -> bool:
    return row.get("type") == "message" and row["message"]["role"] == "system"


def _shown(row: Row, edit: Mapping[str, Any]) -> Iterator[Message]:
    """Yield what the model sees of an entry."""
    match row.get("type"):
        case "message" if not _failed(row):
            yield _message({**row["message"], **edit})
        case "custom_message":
            yield _message({"role": "user", "content": row.get("content"), **edit})
        case "branch_summary" if row.get("summary"):
            yield {"role": "user", "content": row["summary"]}


def _tools(path: Sequence[Row]) -> list[dict[str, Any]] | None:
    """Return the tools that the messages of a path have added and not removed."""
    tools: dict[str, dict[str, Any]] = {}
    for row in path:
        message = row.get("message") or row.get("systemMessage") or {}
        for tool in message.get("toolsRemoved") or ():
            tools.pop(tool["name"], None)
        for tool in message.get("toolsAdded") or ():
            tools[tool["name"]] = {key: tool[key] for key in _TOOL if key in tool}
    return [{"type": "function", "function": tool} for tool in tools.values()] or None


def _message(message: Mapping[str, Any]) -> Message:
    """Return a message of Pi in canonical form."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    match message["role"]:
        case "system":
            sections = message.get("sections") or {}
            return {"role": "system", "content": text or "\n\n".join(map(str, sections.values()))}
        case "toolResult":
            return {"role": "tool", "content": text, "tool_call_id": message["toolCallId"]}
        case "assistant":
            reply: Message = {"role": "assistant", "content": text}
            thoughts = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
            calls = [_call(block) for block in blocks if block["type"] == "toolCall"]
            return {
                **reply,
                **({"reasoning_content": thoughts} if thoughts else {}),
                **({"tool_calls": calls} if calls else {}),
            }
    return {"role": "user", "content": text}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": dumps(block.get("arguments") or {})}
    return {"id": block["id"], "type": "function", "function": function}
