"""Helpers of the parsers of agents' output: lines of JSON to transcript events."""

from __future__ import annotations

import json
from collections.abc import Iterator

from swe_core import AgentEvent
from swe_core.api.agent import EventKind
from swe_core.api.event_lines import as_mapping as mapping
from swe_core.api.event_lines import as_mappings as objects
from swe_core.api.event_lines import json_line as fields_of
from swe_core.api.event_lines import make_event

__all__ = ["event", "fields_of", "mapping", "message_blocks", "objects", "odd", "piece"]

_MAX_ODD = 2000
"""Longest part of a line that is no message, in a transcript."""


def event(kind: EventKind, text: object, tool: object = None, *, fatal: bool = False) -> AgentEvent:
    """Return an event of valid Unicode.

    Args:
        text: Other values than text are shown as JSON, None as "".
        tool: Name of the tool; ignored where it is no text.
    """
    if not isinstance(text, str):
        text = "" if text is None else json.dumps(text, ensure_ascii=False)
    return make_event(kind, text, tool if isinstance(tool, str) else None, fatal=fatal)


def piece(kind: EventKind, text: object) -> AgentEvent:
    """Return the event of a piece of a text that the agent prints while it arrives."""
    return event(kind, text).model_copy(update={"partial": True})


def odd(line: str) -> tuple[AgentEvent, ...]:
    """Return the events of a line that is no message of the agent."""
    return (event("info", line[:_MAX_ODD]),) if line.strip() else ()


def message_blocks(content: object, text: EventKind = "text") -> Iterator[AgentEvent]:
    """Yield the events of the content blocks of a message, as Anthropic's API writes them.

    Args:
        text: Kind of the events of its texts.
    """
    for block in objects(content):
        match block.get("type"):
            case "thinking":
                yield event("reasoning", block.get("thinking"))
            case "text":
                yield event(text, block.get("text"))
            case "tool_use":
                yield event("tool_call", block.get("input"), block.get("name"))
            case "tool_result":
                yield event("tool_result", block.get("content"))
