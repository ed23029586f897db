"""Convert canonical messages for chat formats, and replies of formats to canonical text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from swe_core.api.messages import Message
from swe_core.tokens.renderer import Tools

_UNSETTLED = re.compile(r"[\s\ufffd]+\Z")


def settled(text: str, ended: bool) -> str:
    """Strip white space from `text`; where more may follow, also an unfinished character at its end."""
    return text.strip() if ended else lasting(text.lstrip())


def lasting(text: str) -> str:
    """Strip white space and an unfinished character from the end of `text`: more text may change them."""
    return _UNSETTLED.sub("", text)


def listed(tools: Tools) -> list[dict[str, Any]] | None:
    """Return the tools as formats take them: None where there are none."""
    return [dict(tool) for tool in tools] if tools else None


def with_arguments(message: Message, as_objects: bool, as_text: bool) -> Message:
    """Return the message with the arguments of its calls in a form that the format can print.

    Args:
        as_objects: Whether the format takes dicts.
        as_text: Whether it takes text. Where it does not, arguments that are no JSON object become `{}`, as
            clients send them.
    """
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments: Any = call["function"]["arguments"]
        if as_objects:
            value = _object(arguments)
            arguments = value if value is not None else arguments if as_text else {}
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def with_tool_names(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the tool's name in each result whose call id is known."""
    names: dict[str | None, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id")) if message["role"] == "tool" else None
        named.append({**message, "name": name} if name else message)
    return named


def asking(names: Sequence[str], messages: Sequence[Message], arguments: str = "{}") -> Message | None:
    """Return an assistant message with the calls that results in `messages` answer; None if uncertain.

    Args:
        names: The called tools, in order, which is that of the results (`sort_results`). Certain is one tool,
            called once or more, or a result for each call.
    """
    ids = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    if len(set(names)) == 1:
        names = [names[0]] * len(ids)
    if len(names) != len(ids):
        return None
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name in zip(ids, names, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def is_name(name: object) -> TypeGuard[str]:
    """Return whether `name` can be a tool's name: text that is not empty and valid in UTF-8."""
    return isinstance(name, str) and bool(name) and is_utf8(name)


def is_utf8(text: str) -> bool:
    """Return whether `text` has no lone half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
