"""The messages of a rollout's requests, as JSON for the page of chains: each of them once."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from swe_core.api.records import Turn
from swe_core.view.token_data import earlier_places

MAX_MESSAGE = 20_000
"""Characters of a message that the page has."""
Shown = tuple[str, str, int, int]
"""Role, text, characters left out of it, and a checksum of the whole message."""


def message_data(turns: Sequence[Turn], first: int) -> list[dict[str, Any]]:
    """Return what the request of each turn adds to an earlier one, and the reply.

    Args:
        turns: Those of one try.
        first: Place of the first turn among those of the page.
    """
    return [
        {
            "earlier": earlier,
            "kept": turn.kept,
            "new": [shown_message(message) for message in turn.messages],
            "message": None if turn.reply is None else shown_message(turn.reply),
        }
        for turn, earlier in zip(turns, earlier_places(turns, first), strict=True)
    ]


def shown_message(message: Mapping[str, Any]) -> Shown:
    """Return a message as text: its content, reasoning and calls, and any other field that a client set."""
    parts = []
    for key, value in message.items():
        if key == "role" or value is None or value == []:
            continue
        if key == "content":
            parts.append(_content(value))
        elif key == "tool_calls" and isinstance(value, list):
            parts += map(_call, value)
        else:
            parts.append(f"[{key}] {_text(value)}")
    text = "\n".join(parts)
    shown = text[:MAX_MESSAGE]
    role = message.get("role")
    whole = zlib.crc32(text.encode("utf-8", "replace"))
    return role if isinstance(role, str) else _text(role), shown, len(text) - len(shown), whole


def _content(value: object) -> str:
    if not isinstance(value, list):
        return _text(value)
    return "\n".join(
        part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else _text(part)
        for part in value
    )


def _call(value: object) -> str:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        return _text(value)
    return f"[calls] {_text(function.get('name'))} {_text(function.get('arguments'))}"


def _text(value: object) -> str:
    try:
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it is too deep, or a number is too large
        return str(value)
