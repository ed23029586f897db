"""Contents of Google's requests: instructions, texts, calls and responses in, messages out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import orjson

from swe_core.api.messages import BETWEEN, Message, dumps, sort_results
from swe_core.interception.dialects.base import BadRequest
from swe_core.interception.dialects.common import AssistantParts, kind_of
from swe_core.interception.dialects.google_fields import field_of, list_of

_ROLES = {"user": "user", "function": "user", "model": "model"}
"""Roles of contents, of which "function" is an old one → who speaks."""
_NO_DATA = frozenset({"thought", "thoughtSignature", "thought_signature", "partMetadata", "part_metadata"})
"""Fields that a part may have without data."""
_TEXT_ONLY = "this endpoint's model reads text, function calls and their responses only; send text"


class _Odd(ValueError):
    """A part cannot be read; the text goes on from the place of the part."""


class _Calls:
    """The calls of a conversation: gives ids to those without one, and finds the call of a response."""

    def __init__(self) -> None:
        self._count = 0
        self._open: set[str] = set()
        self._by_name: dict[str, deque[str]] = {}

    def begin(self) -> None:
        """Begin a message of the model: responses answer only its calls."""
        self._open = set()
        self._by_name = {}

    def add(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call in canonical form."""
        name, args = _named(call, "functionCall", "args")
        id = str(call.get("id") or f"call_{self._count}")
        self._count += 1
        self._open.add(id)
        self._by_name.setdefault(name, deque()).append(id)
        return {"id": id, "type": "function", "function": {"name": name, "arguments": dumps(args)}}

    def result(self, response: dict[str, Any]) -> Message:
        """Return the response to a call as a message."""
        name, content = _named(response, "functionResponse", "response")
        if response.get("parts"):
            raise _Odd(f".functionResponse.parts is not supported here: {_TEXT_ONLY} in 'response'")
        message: Message = {"role": "tool", "content": _result_text(content)}
        if id := self._answered(response.get("id"), name):
            message["tool_call_id"] = id
        return message

    def _answered(self, given: object, name: str) -> str | None:
        """Return the id of the call that a response answers: the given id, else the next of that name."""
        id = given if isinstance(given, str) else None
        if id not in self._open:
            waiting = self._by_name.get(name, deque())
            while waiting and waiting[0] not in self._open:  # answered by its id
                waiting.popleft()
            id = waiting.popleft() if waiting else id
        self._open.discard(id or "")
        return id


def messages_of(fields: dict[str, Any]) -> list[Message]:
    """Return the instructions and contents of a request in canonical form."""
    contents = list_of(field_of(fields, "contents"))
    if not contents:
        raise BadRequest("'contents' is missing or empty; send a list of at least one content")
    messages: list[Message] = []
    if texts := _instructions(field_of(fields, "systemInstruction")):
        messages.append({"role": "system", "content": BETWEEN.join(texts)})
    calls = _Calls()
    # The chats of the SDKs send each event of a streamed reply back as a content of its own.
    for role, run in groupby(enumerate(contents), key=_role):
        if role == "model":
            messages.append(_assistant(calls, run))
        else:
            for index, content in run:
                messages += _user(calls, index, content)
    sort_results(messages)
    return messages


def _instructions(given: Any) -> list[str]:
    """Return the texts of the system's instructions: a content, parts, one part or a string."""
    if isinstance(given, str):
        given = {"text": given}
    content = given if isinstance(given, dict) and "parts" in given else {"parts": given}
    texts: list[str] = []
    _read("systemInstruction", content, lambda part: texts.append(part["text"]))
    return texts


def _role(numbered: tuple[int, Any]) -> str:
    index, content = numbered
    if not isinstance(content, dict):
        raise BadRequest(f"contents[{index}] is {kind_of(content)}; send an object with 'parts'")
    given = content.get("role")
    role = _ROLES.get(given or "user") if isinstance(given, str | None) else None
    if role is None:
        raise BadRequest(f"contents[{index}].role is {given!r}; send user or model")
    return role


def _assistant(calls: _Calls, run: Iterable[tuple[int, Any]]) -> Message:
    """Return consecutive contents of the model as one message."""
    calls.begin()
    parts = AssistantParts()

    def add_text(part: dict[str, Any]) -> None:
        (parts.thoughts if part.get("thought") else parts.texts).append(part["text"])

    def add_call(call: dict[str, Any]) -> None:
        parts.calls.append(calls.add(call))

    for index, content in run:
        _read(f"contents[{index}]", content, add_text, "functionCall", add_call)
    return parts.message()


def _user(calls: _Calls, index: int, content: dict[str, Any]) -> list[Message]:
    """Return the responses and texts of a content, in their order. Texts in a row are one message."""
    texts: list[str] = []
    messages: list[Message] = []

    def say() -> None:
        messages.append({"role": "user", "content": BETWEEN.join(texts)})
        texts.clear()

    def answer(response: dict[str, Any]) -> None:
        if texts:
            say()
        messages.append(calls.result(response))

    _read(f"contents[{index}]", content, lambda part: texts.append(part["text"]), "functionResponse", answer)
    if texts or not messages:
        say()
    return messages


def _read(
    at: str,
    content: dict[str, Any],
    add_text: Callable[[dict[str, Any]], None],
    kind: str = "text",
    add: Callable[[dict[str, Any]], None] = lambda data: None,
) -> None:
    """Read the parts of a content.

    Args:
        at: The content's place, for errors.
        add_text: Receives each part that is text.
        kind: The other kind of parts that the content may have.
        add: Receives the data of each part of that kind.
    """
    for number, part in enumerate(list_of(content.get("parts"))):
        try:
            if not isinstance(part, dict):
                raise _Odd(f" is {kind_of(part)}; send an object such as {{'text': ...}}")
            if isinstance(part.get("text"), str):
                add_text(part)
            elif (data := _data(part, kind)) is not None:
                add(data)
        except _Odd as odd:
            raise BadRequest(f"{at}.parts[{number}]{odd}") from None


def _data(part: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return the object of `kind` in a part without text; None in a part without data."""
    if part.get("text") is not None:
        raise _Odd(f".text is {kind_of(part['text'])}; send a string")
    data = field_of(part, kind)
    if isinstance(data, dict):
        return data
    if data is not None:
        raise _Odd(f".{kind} is {kind_of(data)}; send an object")
    odd = next((key for key, value in part.items() if value is not None and key not in _NO_DATA), None)
    if odd is not None:
        raise _Odd(f".{odd} is not supported here: {_TEXT_ONLY}")
    return None


def _named(fields: dict[str, Any], at: str, key: str) -> tuple[str, dict[str, Any]]:
    """Return the name in a call or response, and the object at `key`."""
    name, value = fields.get("name") or "", fields.get(key)  # a model may sample a call without a name
    if not isinstance(name, str):
        raise _Odd(f".{at}.name is {kind_of(name)}; send a string")
    if not isinstance(value, dict | None):
        raise _Odd(f".{at}.{key} is {kind_of(value)}; send an object")
    return name, value or {}


def _result_text(response: dict[str, Any]) -> str:
    """Return a function's response as text: its output where that is all there is, else sorted JSON."""
    if len(response) == 1:
        ((key, value),) = response.items()
        if key in ("output", "result") and isinstance(value, str):
            return value
    return orjson.dumps(response, option=orjson.OPT_SORT_KEYS).decode()
