"""The canonical form of a conversation in any dialect.

A canonical message is a dict as in chat completions, in normal form:

    role               "system", "user", "assistant" or "tool"
    content            text, perhaps ""; parts are joined (`text_of`)
    reasoning_content  assistant only, where present: the model's reasoning
    tool_calls         assistant only, where present: {"id", "type": "function",
                       "function": {"name", "arguments"}}, arguments as text
    tool_call_id       tool only, where known: the call of this result

Results stand in the order of their calls (`sort_results`): many chat formats print no ids, so that a model
finds the call of a result by its place.

Templates render this form, and turns are matched by it. `message_key` is equal for messages that differ
only in harmless ways, since clients rewrite history. The sampled tokens are stored separately.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

Message = dict[str, Any]
"""A canonical message."""
BETWEEN = "\n"
"""Stands between the parts of a message of a user, the system or a tool, as vLLM joins them."""

_SAFE_INTEGER = 2**53
"""First integer that JavaScript does not represent exactly (ECMAScript, Number.MAX_SAFE_INTEGER + 1)."""
_LONG = 1024
"""Length of arguments above which their normal form is not cached, to save memory, characters."""


def message_key(message: Mapping[str, Any]) -> Hashable:
    """Return a key that is equal for equivalent canonical messages.

    The key ignores call ids and reasoning, which many clients drop, white space around a reply's text,
    and the notation of arguments: `{"a": 1.0}` equals `{"a":1}`. Arguments that are no JSON object equal
    `{}`, which clients send instead.
    """
    role, content = message["role"], message["content"]
    if role != "assistant":
        return role, content
    calls = message.get("tool_calls") or ()
    return role, content.strip(), tuple((name, same_arguments(text)) for name, text in map(_function, calls))


def same_arguments(text: str) -> str:
    """Return the normal form of a call's arguments, equal for texts that a client treats as equal."""
    return _cached(text) if len(text) <= _LONG else _normal(text)


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    return call["function"]["name"], call["function"]["arguments"]


def _normal(text: str) -> str:
    try:
        value = _loads(text)
        return json.dumps(_as_javascript(value), sort_keys=True) if isinstance(value, dict) else "{}"
    except ValueError:
        return "{}"
    except RecursionError:  # nested too deep for us, though perhaps not for the client
        return text if text.lstrip().startswith("{") else "{}"


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # JavaScript accepts huge numbers and lone halves of surrogate pairs
        value = json.loads(text, parse_constant=_refuse)
        # As dialects read a request: a half, which is no text, becomes "?".
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_cached = lru_cache(maxsize=2048)(_normal)


def _as_javascript(value: Any) -> Any:
    """Return `value` with its numbers as a JavaScript client sends them back, as 64-bit floats."""
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


def text_of(content: object, role: object = "assistant") -> str:
    """Return a message's content as text. A list of text parts is joined, because templates misprint lists.

    Args:
        role: Who wrote it. The parts of a reply are cut by its dialect or client, so nothing stands between
            them: the reply is to equal what was sampled. Other parts are texts of their own: `BETWEEN`.

    Raises:
        ValueError: A part is no text, such as an image. The message names its type.
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
    return ("" if role == "assistant" else BETWEEN).join(texts)


def sort_results(messages: list[Message], *alike: list[Any]) -> None:
    """Sort the results after each assistant message into the order of its calls, in place.

    The results up to the next assistant message share their places; messages of other roles keep theirs.
    Assistant messages that follow one another count as one. With equal ids, the first result answers the
    first call, the second one the second, and further ones the last. A result without an id, or with one that
    no call so far has, answers the first call that no other result names; the former gets its id. Results of
    earlier calls, and those for which no call is left, come last, as they were. A call may have no result.

    Args:
        alike: Lists of the same length, in which the items at the same places move too.
    """
    if _are_sorted(messages):
        return
    earlier: set[object] = set()
    calls: list[object] = []
    places: list[int] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            places.append(at)
        elif message["role"] == "assistant":
            _sort(messages, alike, places, calls, earlier)
            if at and messages[at - 1]["role"] != "assistant":
                earlier.update(calls)
                calls = []
            calls += [call["id"] for call in message.get("tool_calls") or ()]
            places = []
    _sort(messages, alike, places, calls, earlier)


def _are_sorted(messages: Sequence[Message]) -> bool:
    """Return whether each result is that of the next call of the assistant message before it, as most are."""
    calls: Sequence[object] = ()
    at = 0
    for message in messages:
        role = message["role"]
        if role == "tool":
            if at >= len(calls) or message.get("tool_call_id") != calls[at]:
                return False
            at += 1
        elif role == "assistant":
            asked = message.get("tool_calls")
            calls, at = [call["id"] for call in asked] if asked else (), 0
    return True


def _sort(
    messages: list[Message],
    alike: Sequence[list[Any]],
    places: Sequence[int],
    calls: Sequence[object],
    earlier: set[object],
) -> None:
    """Sort the results at `places` into the order of the ids `calls`."""
    ids = [messages[place].get("tool_call_id") for place in places]
    if ids == calls[: len(ids)]:
        return
    named: dict[object, deque[int]] = {}
    for number, id_ in enumerate(calls):
        named.setdefault(id_, deque()).append(number)
    ranks = [_next(named.get(id_)) for id_ in ids]
    taken = set(ranks)
    free = (rank for rank in range(len(calls)) if rank not in taken)
    for at, place in enumerate(places):
        if ranks[at] is None and ids[at] not in earlier and (rank := next(free, None)) is not None:
            ranks[at] = rank
            if ids[at] is None:
                messages[place] = {**messages[place], "tool_call_id": calls[rank]}
    last = len(calls)
    ranked = zip(places, ranks, strict=True)
    order = [place for place, rank in sorted(ranked, key=lambda one: last if one[1] is None else one[1])]
    for items in (messages, *alike):
        for place, item in zip(places, [items[place] for place in order], strict=True):
            items[place] = item


def _next(waiting: deque[int] | None) -> int | None:
    """Take the first of `waiting`; the last one stays."""
    if not waiting:
        return None
    return waiting.popleft() if len(waiting) > 1 else waiting[0]


def dumps(value: object) -> str:
    """Return `value` as JSON text for a message."""
    return orjson.dumps(value).decode()


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")
