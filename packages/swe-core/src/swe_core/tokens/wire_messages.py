"""Canonical messages as chat formats want them, and what formats find in a reply as canonical text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from swe_core.api.messages import Message
from swe_core.tokens.renderer import Tools

_UNSETTLED = re.compile(r"[\s\ufffd]+\Z")


def settled(text: str, ended: bool) -> str:
    """`text` without the white space around it. Where more may follow, also without what stands at its end
    for a character of which only some bytes are there."""
    return text.strip() if ended else lasting(text.lstrip())


def lasting(text: str) -> str:
    """`text` up to the white space and the unfinished character at its end, which more text may change."""
    return _UNSETTLED.sub("", text)


def listed(tools: Tools) -> list[dict[str, Any]] | None:
    """The tools as formats take them: None where there are none."""
    return [dict(tool) for tool in tools] if tools else None


def with_arguments(message: Message, as_objects: bool, as_text: bool) -> Message:
    """The message with the arguments of its calls in a form that the format can print.

    Args:
        as_objects: Whether the format takes dicts.
        as_text: Whether it takes text. Where it does not, arguments that are no JSON object become `{}`,
            which is also what clients send in their place.
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
    """The messages with each tool result naming its tool, where the id of its call tells it."""
    names: dict[str | None, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id")) if message["role"] == "tool" else None
        named.append({**message, "name": name} if name else message)
    return named


def asking(names: Sequence[str], messages: Sequence[Message]) -> Message | None:
    """An assistant message whose calls the tool results in `messages` answer; None where it is not certain
    which of the called tools each result comes from.

    Args:
        names: The tools that were called, in this order. Certain is one tool, called once or more, and a
            result for each call, which clients send in the order of the calls.
    """
    ids = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    if len(set(names)) == 1:
        names = [names[0]] * len(ids)
    if len(names) != len(ids):
        return None
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in zip(ids, names, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def is_name(name: object) -> TypeGuard[str]:
    """Whether `name` can be a tool's name: a text that is not empty and that UTF-8 can carry."""
    return isinstance(name, str) and bool(name) and _is_utf8(name)


def arguments_text(arguments: object, raw: str) -> str:
    """Parsed arguments as text again; text stays as it was sampled.

    Args:
        raw: The call as it was sampled, which stands for arguments that JSON cannot write: there are none,
            they hold a number beyond 64-bit floats, or they are nested too deep.
    """
    if arguments is None:
        return raw
    if isinstance(arguments, str) and _is_utf8(arguments):
        return arguments
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # JSON can name half of a surrogate pair, which UTF-8 cannot carry
        return text if _is_utf8(text) else json.dumps(arguments)
    except (ValueError, RecursionError):
        return raw


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
