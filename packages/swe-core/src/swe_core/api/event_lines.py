"""For `AgentSpec.parse_event` of agents that print JSON lines: parts of a line, and transcript events.

Lines come from the sandbox, so nothing here raises for any value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from swe_core.api.agent import AgentEvent, EventKind


def json_line(line: str) -> dict[str, Any] | None:
    """Return the JSON object on a line, or None if there is none."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def make_event(kind: EventKind, text: str, tool: str | None = None, *, fatal: bool = False) -> AgentEvent:
    """Return an event of valid Unicode; agents may cut text inside a surrogate pair."""
    tool = None if tool is None else _whole(tool)
    return AgentEvent(kind=kind, text=_whole(text), tool=tool, fatal=fatal)


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


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
