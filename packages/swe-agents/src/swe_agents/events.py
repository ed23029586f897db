"""Helpers of the parsers of agents' output: lines of JSON to transcript events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from swe_core import AgentEvent
from swe_core.api.agent import EventKind

_MAX_ODD = 2000
"""Longest part of a line that is no message, in a transcript."""


def fields_of(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None if the line has none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def event(kind: EventKind, text: object, tool: object = None, *, fatal: bool = False) -> AgentEvent:
    """Return an event of valid Unicode: an agent may cut text inside a surrogate pair.

    Args:
        text: Other values than text are shown as JSON, None as "".
        tool: Name of the tool; ignored where it is no text.
    """
    if not isinstance(text, str):
        text = "" if text is None else json.dumps(text, ensure_ascii=False)
    return AgentEvent(
        kind=kind, text=_whole(text), tool=_whole(tool) if isinstance(tool, str) else None, fatal=fatal
    )


def odd(line: str) -> tuple[AgentEvent, ...]:
    """Return the events of a line that is no message of the agent."""
    return (event("info", line[:_MAX_ODD]),) if line.strip() else ()


def mapping(value: object) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def message_blocks(content: object) -> Iterator[AgentEvent]:
    """Yield the events of the content blocks of a message, as Anthropic's API writes them."""
    for block in objects(content):
        match block.get("type"):
            case "thinking":
                yield event("reasoning", block.get("thinking"))
            case "text":
                yield event("text", block.get("text"))
            case "tool_use":
                yield event("tool_call", block.get("input"), block.get("name"))
            case "tool_result":
                yield event("tool_result", block.get("content"))


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
