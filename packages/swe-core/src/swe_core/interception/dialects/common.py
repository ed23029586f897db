"""What the parsers of all dialects share: JSON in, words for its kinds, events out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from swe_core.api.messages import Message
from swe_core.interception.dialects.base import BadRequest
from swe_core.system.json_size import is_deep

_DEPTH = 128
"""Levels of objects and lists in a request. orjson writes 254, and a record adds some."""
_HOSTED = (
    *("web_search", "web_fetch", "file_search", "image_generation", "code_interpreter", "code_execution"),
    *("computer", "mcp", "local_shell", "tool_search", "advisor", "x_search", "collections_search"),
    *("browser_search", "google_search", "url_context", "openrouter:", "programmatic_tool_calling"),
)
"""Types of tools, or their beginnings, that agents offer unasked. The model does not see such tools."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair, escaped."""


def load(raw: bytes | bytearray, depth: int = _DEPTH) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        BadRequest: The body is no JSON object, or has more than `depth` levels of objects and lists.
    """
    body = _load(raw)
    if not isinstance(body, dict):
        raise BadRequest(f"the request body is {kind_of(body)}; send a JSON object")
    if is_deep(body, depth):
        raise BadRequest(f"the request body is nested more than {depth} levels deep; send a flatter one")
    return body


def expect(body: dict[str, Any], *keys: tuple[str, type | tuple[type, ...], str]) -> None:
    """Check the types of values; absent and null ones pass.

    Args:
        keys: Key, type, and the words for it in an error, such as "an object".

    Raises:
        BadRequest: A value has another type.
    """
    for key, kind, wanted in keys:
        value = body.get(key)
        if value is not None and not isinstance(value, kind):
            raise BadRequest(f"{key!r} is {kind_of(value)}; send {wanted}")


def is_hosted(kind: object) -> bool:
    """Return whether tools of a type are left out, as this endpoint does not run them."""
    return str(kind).startswith(_HOSTED)


def refuse(options: Mapping[str, tuple[Any, str]], get: Callable[[str], object]) -> None:
    """Check that options which this endpoint does not have are absent, null or harmless.

    Args:
        options: Option → its harmless value, and the reason why there is no other.
        get: Returns the value of an option in the request.

    Raises:
        BadRequest: An option has another value.
    """
    for key, (nothing, why) in options.items():
        if get(key) not in (None, nothing):
            raise BadRequest(f"{key!r} is not supported here: {why}; leave it out")


@dataclass(slots=True)
class AssistantParts:
    """An assistant message that a client sends in pieces."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> Message:
        """Return the message in canonical form."""
        message: Message = {"role": "assistant", "content": "".join(self.texts)}
        if reasoning := "".join(self.thoughts):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def limit_of(body: dict[str, Any], *keys: str) -> int | None:
    """Return the smallest of some limits, all names of the same; None where none is set.

    Raises:
        BadRequest: A limit is no whole number of at least 1.
    """
    wanted = []
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest(f"{key!r} is {value!r}; send a whole number of at least 1")
        wanted.append(value)
    return min(wanted, default=None)


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Return a server-sent event with JSON data."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data))


def kind_of(value: object) -> str:
    """Return the words for a JSON value's type, such as "an object"."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "missing or null"
    if value == []:
        return "an empty list"
    return names.get(type(value), "a number")


def _load(raw: bytes | bytearray) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        problem = str(error)
    # JavaScript cuts strings between the halves of a surrogate pair and sends a lone half as an escape,
    # which is JSON but no text. Replace the half instead of refusing the agent's honest request.
    if _HALF.search(raw) is not None:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(raw), ensure_ascii=False)
            return orjson.loads(text.encode("utf-8", "replace"))
    raise BadRequest(f"the request body is not JSON: {problem}")
