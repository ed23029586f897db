"""A parser of Pi's JSON event stream (`--mode json`), which returns transcript events.

Each line is parsed on its own, because one parser serves many rollouts. The order of events therefore shows
whether an error ended the agent: a failed LLM call is an `error`, and the reply of a successful retry follows
it. When Pi gives up, its `agent_end` contains the error, which becomes fatal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swe_core import AgentEvent

_UPDATE = '{"type":"message_update"'
"""Prefix of lines that repeat a message while it is generated. Most of the output is such lines."""
_MAX_ODD = 2000


def parse_line(line: str) -> Sequence[AgentEvent]:
    """Return the transcript events of one line. This never raises."""
    if not line.strip() or line.startswith(_UPDATE):
        return ()
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return (_event("info", line[:_MAX_ODD]),)
    match event["type"]:
        case "message_end":
            return tuple(_message(_mapping(event.get("message"))))
        case "agent_end":
            return tuple(_end(event))
        case "auto_retry_start":
            text = f"retry {event.get('attempt')} of {event.get('maxAttempts')}: {event.get('errorMessage')}"
        case "auto_retry_end":
            text = "the retry succeeded" if event.get("success") is True else "the retries failed"
        case "compaction_start":
            text = f"compaction started: {event.get('reason')}"
        case "compaction_end":
            text = f"compaction ended: {event.get('errorMessage') or event.get('reason')}"
        case _:
            return ()
    return (_event("info", text),)


def _message(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    match message.get("role"):
        case "assistant":
            yield from _assistant(message)
        case "toolResult":
            yield _event("tool_result", _text_of(message.get("content")), tool=_str(message.get("toolName")))


def _assistant(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    said = False
    for block in _blocks(message.get("content")):
        match block.get("type"):
            case "thinking":
                yield _event("reasoning", _str(block.get("thinking")))
            case "text":
                said = True
                yield _event("text", _str(block.get("text")))
            case "toolCall":
                said = True
                wrong = block.get("argumentsError")
                text = _str(wrong) if wrong else json.dumps(block.get("arguments"), ensure_ascii=False)
                yield _event("tool_call", text, tool=_str(block.get("name")))
    error = _error_of(message)
    if error is not None:
        yield _event("error", error)
        return
    if not said:  # even an empty reply ends an earlier failure
        yield _event("text", "")
    if message.get("stopReason") == "length":
        yield _event("info", "the reply was cut off at its token limit")


def _end(event: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Yield the fatal error if the agent ended with one. `agent_end` repeats every message."""
    messages = _blocks(event.get("messages"))
    last = messages[-1] if messages else {}
    error = _error_of(last) if last.get("role") == "assistant" else None
    if error is not None and event.get("willRetry") is not True:
        yield _event("error", error, fatal=True)


def _error_of(message: Mapping[str, Any]) -> str | None:
    """Return Pi's error message for the LLM call behind `message`, or None if the call succeeded."""
    reason = message.get("stopReason")
    if reason not in ("error", "aborted"):
        return None
    return _str(message.get("errorMessage")) or f"the LLM call ended as {reason!r} without an error message"


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = (
        _str(block.get("text")) if block.get("type") == "text" else f"[{_str(block.get('type'))}]"
        for block in _blocks(content)
    )
    return "\n".join(parts)


def _event(kind: Any, text: str, tool: str | None = None, *, fatal: bool = False) -> AgentEvent:
    """Return an event of valid Unicode. Pi may cut text inside a surrogate pair."""
    tool = None if tool is None else _whole(tool)
    return AgentEvent(kind=kind, text=_whole(text), tool=tool, fatal=fatal)


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _blocks(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
