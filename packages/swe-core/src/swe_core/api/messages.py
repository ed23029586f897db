"""The ONE canonical form of a conversation, whatever dialect the agent speaks.

A canonical message is a dict as in chat completions, in normal form:

    role               "system", "user", "assistant" or "tool"
    content            text, "" where there is none
    reasoning_content  assistant only, where there is some: what the model thought
    tool_calls         assistant only, where there are some: {"id", "type": "function",
                       "function": {"name", "arguments"}}, arguments as text
    tool_call_id       tool only, where known: which call this is the result of

It is what templates render and what turns are matched by. `message_key` says when two messages are the same
for that purpose: clients rewrite history in harmless ways, and the sampled tokens are kept apart anyway.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any

import orjson

Message = dict[str, Any]
"""A canonical message."""

_SAFE_INTEGER = 2**53
"""From here on JavaScript's numbers lose integers (ECMAScript, Number.MAX_SAFE_INTEGER + 1)."""
_LONG = 1024
"""Characters of arguments above which the normal form is not cached, which would hold them in memory."""


def message_key(message: Mapping[str, Any]) -> Hashable:
    """What makes a canonical message the same one.

    Left out are the ids of calls and the reasoning, which many clients drop; white space around a reply's
    text; and how arguments are written: `{"a": 1.0}` is `{"a":1}`, and what is no JSON object is `{}`, which
    is what clients send in its place.
    """
    role, content = message["role"], message["content"]
    if role != "assistant":
        return role, content
    calls = message.get("tool_calls") or ()
    return role, content.strip(), tuple((name, same_arguments(text)) for name, text in map(_function, calls))


def same_arguments(text: str) -> str:
    """The normal form of a call's arguments: equal for texts that are the same arguments to a client."""
    return _cached(text) if len(text) <= _LONG else _normal(text)


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    return call["function"]["name"], call["function"]["arguments"]


def _normal(text: str) -> str:
    try:
        value = _loads(text)
        return json.dumps(_as_javascript(value), sort_keys=True) if isinstance(value, dict) else "{}"
    except ValueError:
        return "{}"
    except RecursionError:  # nested too deep to be looked into, though perhaps not for the client
        return text if text.lstrip().startswith("{") else "{}"


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # halves of surrogate pairs and huge numbers, which JavaScript reads
        return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_cached = lru_cache(maxsize=2048)(_normal)


def _as_javascript(value: Any) -> Any:
    """`value` with its numbers as a client in JavaScript would send them back: one kind, 64-bit floats."""
    if isinstance(value, dict):
        return {key: _as_javascript(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_javascript(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON.stringify(1e400)
    if isinstance(value, float) and value.is_integer() and abs(value) < _SAFE_INTEGER:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _SAFE_INTEGER:
        try:
            return float(value)
        except OverflowError:
            return None
    return value


def text_of(content: object) -> str:
    """A message's content as text: a list of text parts is joined. Templates that print lists as nothing,
    or as Python, would lose it without a word.

    Raises:
        ValueError: A part is not text, say an image; the sentence says what it is.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise ValueError(f"content is {_kind(content)}; send a string or a list of text parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if kind not in ("text", "refusal", "input_text", "output_text", None) or not isinstance(text, str):
            raise ValueError(
                f"a content part is {kind or _kind(part)!r}; this endpoint's model reads text only, "
                "so send text parts"
            )
        texts.append(text)
    return "".join(texts)


def dumps(value: object) -> str:
    """`value` as JSON text, as it is put into messages."""
    return orjson.dumps(value).decode()


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")
