"""For `AgentSpec.parse_event` of agents that print JSON lines: parts of a line, and transcript events.

Lines come from the sandbox, so nothing here raises for any value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from swe_core.api.agent import AgentEvent, EventKind

_MAX_ODD = 2000
"""Longest part of a line that is no message, in a transcript."""


def json_line(line: str) -> dict[str, Any] | None:
    """Return the JSON object on a line, or None if there is none."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def make_event(
    kind: EventKind, text: object, tool: object = None, *, fatal: bool = False, partial: bool = False
) -> AgentEvent:
    """Return an event of valid Unicode; agents may cut text inside a surrogate pair.

    Args:
        text: A value that is no text is shown as JSON, None as "".
        tool: Name of the tool; ignored if it is no text.
        fatal: See `AgentEvent`.
        partial: See `AgentEvent`.
    """
    name = _whole(tool) if isinstance(tool, str) else None
    return AgentEvent(kind=kind, text=_whole(_shown(text)), tool=name, fatal=fatal, partial=partial)


def odd_line(line: str) -> tuple[AgentEvent, ...]:
    """Return the events of a line that is no message of the agent."""
    return (make_event("info", line[:_MAX_ODD]),) if line.strip() else ()


def events_of_blocks(content: object, text: EventKind = "text") -> Iterator[AgentEvent]:
    """Yield the events of the content blocks of a message, as Anthropic's API writes them.

    Args:
        text: Kind of the events of its texts.
    """
    for block in as_mappings(content):
        match block.get("type"):
            case "thinking":
                yield make_event("reasoning", block.get("thinking"))
            case "text":
                yield make_event(text, block.get("text"))
            case "tool_use":
                yield make_event("tool_call", block.get("input"), block.get("name"))
            case "tool_result":
                yield make_event("tool_result", text_of_blocks(block.get("content")))


def text_of_blocks(content: object) -> str:
    """Return the text of a message's content: a string, or blocks; `[image]` stands for such a block."""
    if isinstance(content, str):
        return content
    texts = (block.get("text") for block in as_mappings(content))
    types = (block.get("type") for block in as_mappings(content))
    return "\n".join(
        text if isinstance(text, str) else f"[{as_text(kind)}]"
        for text, kind in zip(texts, types, strict=True)
    )


def as_text(value: object) -> str:
    """Return the value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects of the value if it is a list, else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[nested too deeply]"


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
