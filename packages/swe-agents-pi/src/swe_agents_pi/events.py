"""A parser of Pi's JSON event stream (`--mode json`), which returns transcript events.

Each line is parsed on its own, because one parser serves many rollouts. The order of events therefore shows
whether an error ended the agent: a failed LLM call is an `error`, and the reply of a successful retry follows
it. When Pi gives up, its `agent_end` contains the error, which becomes fatal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swe_core import AgentEvent
from swe_core.api.event_lines import (
    as_mapping,
    as_mappings,
    as_text,
    json_line,
    make_event,
    odd_line,
    text_of_blocks,
)

_UPDATE = '{"type":"message_update"'
"""Prefix of lines that repeat a message while it is generated. Most of the output is such lines."""


def parse_line(line: str) -> Sequence[AgentEvent]:
    """Return the transcript events of one line. This never raises."""
    if line.startswith(_UPDATE):
        return ()
    event = json_line(line)
    if event is None or not isinstance(event.get("type"), str):
        return odd_line(line)
    match event["type"]:
        case "message_end":
            return tuple(_message(as_mapping(event.get("message"))))
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
    return (make_event("info", text),)


def _message(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    match message.get("role"):
        case "assistant":
            yield from _assistant(message)
        case "toolResult":
            yield make_event("tool_result", text_of_blocks(message.get("content")), message.get("toolName"))


def _assistant(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    said = False
    for block in as_mappings(message.get("content")):
        match block.get("type"):
            case "thinking":
                yield make_event("reasoning", block.get("thinking"))
            case "text":
                said = True
                yield make_event("text", block.get("text"))
            case "toolCall":
                said = True
                arguments = block.get("argumentsError") or block.get("arguments")
                yield make_event("tool_call", arguments, block.get("name"))
    error = _error_of(message)
    if error is not None:
        yield make_event("error", error)
        return
    if not said:  # even an empty reply ends an earlier failure
        yield make_event("text", "")
    if message.get("stopReason") == "length":
        yield make_event("info", "the reply was cut off at its token limit")


def _end(event: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Yield the fatal error if the agent ended with one. `agent_end` repeats every message."""
    messages = as_mappings(event.get("messages"))
    last = messages[-1] if messages else {}
    error = _error_of(last) if last.get("role") == "assistant" else None
    if error is not None and event.get("willRetry") is not True:
        yield make_event("error", error, fatal=True)


def _error_of(message: Mapping[str, Any]) -> str | None:
    """Return Pi's error message for the LLM call behind `message`, or None if the call succeeded."""
    reason = message.get("stopReason")
    if reason not in ("error", "aborted"):
        return None
    return (
        as_text(message.get("errorMessage")) or f"the LLM call ended as {reason!r} without an error message"
    )
