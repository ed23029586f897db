"""Transcripts: the calls of a rollout with what each added, its reply, and the results of its tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from swe_core.api.agent import AgentEvent
from swe_core.api.event_lines import as_mapping, as_mappings, as_text, text_of_blocks
from swe_core.api.messages import text_of
from swe_core.api.records import Turn
from swe_core.errors import UsageError
from swe_core.rollout.run_directory import TRANSCRIPT_FILE, TURNS_FILE
from swe_core.system.files import open_below
from swe_core.system.printable import one_line
from swe_core.view.excerpts import Excerpt, Excerpts

MAX_EVENTS = 8_000_000
"""Bytes that are read of a transcript."""
_TITLE = 140
_OPEN = ("user",)
"""Roles whose new messages are not folded."""


@dataclass(slots=True)
class Call:
    """A tool call of a reply. `result` is None until a later request has it."""

    tool: str
    title: str
    arguments: Excerpt
    result: Excerpt | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a request added, and that is no result of a call that the page shows."""

    role: str
    title: str
    text: Excerpt
    open: bool


@dataclass(slots=True)
class Shown:
    """One LLM call of the transcript.

    Args:
        turn: Its record.
        at: Seconds from the start of the rollout.
        note: How its request continues another one, if it is not the one before it; else empty.
        messages: What the request added, without the results in `calls` of earlier turns.
        repeats: The same of a request that changed its history: it may repeat old messages.
    """

    turn: Turn
    at: float
    note: str
    messages: list[Message]
    repeats: bool
    reasoning: Excerpt
    text: Excerpt
    calls: list[Call] = field(default_factory=list)

    @property
    def stamp(self) -> str:
        """Return what changes whenever it does: results arrive with later calls."""
        return str(sum(call.result is not None for call in self.calls))


@dataclass(frozen=True, slots=True)
class Said:
    """An event of the agent's own transcript."""

    event: AgentEvent
    title: str
    text: Excerpt


def shown_turns(turns: Sequence[Turn], began: datetime | None, excerpts: Excerpts) -> list[Shown]:
    """Return the transcript of `turns`.

    Args:
        turns: In the order of the file.
        began: Start of the rollout; None counts from the first call.
        excerpts: Cuts the texts.
    """
    began = began or min((turn.started_at for turn in turns), default=None)
    lengths: dict[int, int] = {}
    replies: dict[int, Mapping[str, Any]] = {}
    waiting: dict[str, Call] = {}
    found: list[Shown] = []
    before: int | None = None
    for turn in turns:
        after = before if turn.after is None else turn.after
        length = lengths.get(after, 0) if after is not None else 0
        changed = turn.kept < length
        note = _note(turn, after, before, length)
        messages = []
        for message in turn.messages:
            call = waiting.pop(as_text(message.get("tool_call_id")), None) if not changed else None
            if call is not None and call.result is None:
                call.result = excerpts.cut(content_of(message), TURNS_FILE)
            elif changed or after is None or not _same(message, replies.get(after)):
                messages.append(_message(message, excerpts))
        reply = as_mapping(turn.reply)
        shown = Shown(
            turn,
            (turn.started_at - began).total_seconds() if began else 0.0,
            note,
            messages,
            changed,
            excerpts.cut(reasoning_of(reply), TURNS_FILE),
            excerpts.cut(content_of(reply), TURNS_FILE),
        )
        for name, arguments, key in calls_of(reply):
            call = Call(
                name, one_line(gist(arguments), _TITLE), excerpts.cut(readable(arguments), TURNS_FILE)
            )
            shown.calls.append(call)
            waiting[key] = call
        found.append(shown)
        lengths[turn.index] = turn.kept + len(turn.messages)
        replies[turn.index] = reply
        before = turn.index
    return found


def shown_events(events: Sequence[AgentEvent], excerpts: Excerpts, width: int, folded: int) -> list[Said]:
    """Return the agent's own transcript, with `width` and `folded` as in `Excerpts.cut`."""
    return [
        Said(
            event,
            one_line(gist(event.text) if event.kind == "tool_call" else event.text[: 4 * _TITLE], _TITLE),
            excerpts.cut(
                readable(event.text) if event.kind == "tool_call" else event.text,
                TRANSCRIPT_FILE,
                width,
                folded,
            ),
        )
        for event in events
    ]


def read_events(path: Path, run: Path) -> tuple[list[AgentEvent], int]:
    """Return the first events of a transcript in the run directory `run`, and its bytes that were not read.

    Raises:
        UsageError: A line is damaged.
    """
    try:
        with open_below(path, run) as file:
            data = file.read(MAX_EVENTS)
            rest = os.fstat(file.fileno()).st_size - len(data)
    except OSError:
        return [], 0
    *lines, torn = data.split(b"\n")
    try:
        return [AgentEvent.model_validate_json(line) for line in lines], rest + len(torn) if rest else 0
    except ValidationError:
        raise UsageError(f"{str(path)!r} is damaged: a line is not an agent's event") from None


def content_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message."""
    try:
        return text_of(message.get("content"), message.get("role"))
    except ValueError:  # it has an image, say
        return text_of_blocks(message.get("content"))


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a reply; empty without."""
    return as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))


def calls_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the tool calls of a reply: name, arguments as text, id."""
    for call in as_mappings(message.get("tool_calls")):
        function = as_mapping(call.get("function"))
        yield as_text(function.get("name")), as_text(function.get("arguments")), as_text(call.get("id"))


def _note(turn: Turn, after: int | None, before: int | None, length: int) -> str:
    """Return how the request continues another one; empty where it continues the one before it."""
    if after is None or not turn.kept:
        return "" if before is None else "begins another conversation"
    if turn.kept < length:
        return f"changes its history: keeps {turn.kept:,} of the {length:,} messages of turn {after}"
    return "" if after == before else f"continues turn {after}"


def _same(message: Mapping[str, Any], reply: Mapping[str, Any] | None) -> bool:
    """Return whether a message is the reply of the turn before, which the page has already."""
    if not reply or message.get("role") != "assistant":
        return False
    own, sent = ([(name, key) for name, _, key in calls_of(one)] for one in (reply, message))
    return own == sent and content_of(reply).strip() == content_of(message).strip()


def _message(message: Mapping[str, Any], excerpts: Excerpts) -> Message:
    role = as_text(message.get("role")) or "message"
    parts = [content_of(message)]
    parts += [f"{name} {arguments}" for name, arguments, _ in calls_of(message)]
    text = "\n".join(part for part in parts if part)
    title = {"tool": "result of a tool", "assistant": "an earlier reply, as the agent sends it"}.get(
        role, role
    )
    return Message(role, title, excerpts.cut(text, TURNS_FILE), role in _OPEN)


def gist(arguments: str) -> str:
    """Return what a call is about, for one line: the values of its arguments."""
    values = _values(arguments)
    if values is None:
        return arguments[: 4 * _TITLE]
    return " ".join(value[: 4 * _TITLE] for value in values.values())


def readable(arguments: str) -> str:
    """Return the arguments of a call for reading: each on lines of its own, texts as they are."""
    values = _values(arguments)
    if values is None:
        return arguments
    return "\n".join(
        f"{name}:\n{text}" if "\n" in text else f"{name}: {text}" for name, text in values.items()
    )


def _values(arguments: str) -> dict[str, str] | None:
    """Return the arguments of a call as texts by their names; None if they are not to be read as JSON."""
    try:
        found = orjson.loads(arguments)
        if not isinstance(found, dict):
            return None
        return {
            name: value if isinstance(value, str) else orjson.dumps(value).decode()
            for name, value in found.items()
        }
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # orjson reads deeper JSON than it writes
        return None
