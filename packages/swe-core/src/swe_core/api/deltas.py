"""Cut an assistant message into deltas, and join deltas to a message.

A delta is `choices[0].delta` of a chat-completions chunk. `join(cut(message, n))` equals `message` for any n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from swe_core.api.engine import Delta

_TEXTS = frozenset({"content", "reasoning", "reasoning_content"})


def whole(message: Mapping[str, Any]) -> Delta:
    """Return `message` as one delta, in which each tool call has an index."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}


def cut(message: Mapping[str, Any], size: int) -> Iterator[Delta]:
    """Cut `message` into deltas with at most `size` characters of text each, as a streaming model does."""
    yield {"role": message.get("role", "assistant")}
    for key, value in message.items():
        if key in ("role", "tool_calls") or value is None:
            continue
        if isinstance(value, str):
            for piece in _pieces(value, size):
                yield {key: piece}
        else:
            yield {key: value}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function", {})
        yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
        for piece in _pieces(function.get("arguments", ""), size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def join(deltas: Iterable[Delta]) -> dict[str, Any]:
    """Join `deltas` to a message.
    Raises:
        ValueError: See `Joiner.add`.
    """
    joiner = Joiner()
    for delta in deltas:
        joiner.add(delta)
    return joiner.message()


def merge(deltas: Iterable[Delta]) -> Iterator[dict[str, Any]]:
    """Merge adjacent text deltas, and drop empty ones."""
    texts: dict[str, str] = {}
    for delta in deltas:
        if delta.keys() <= _TEXTS and all(isinstance(text, str) for text in delta.values()):
            for key, text in delta.items():
                texts[key] = texts.get(key, "") + text
            continue
        if texts:
            yield texts
            texts = {}
        yield dict(delta)
    if texts:
        yield texts


class Indices:
    """Assigns streamed pieces of tool calls to calls."""

    def __init__(self) -> None:
        self._last = -1

    def of(self, piece: Mapping[str, Any]) -> int:
        """Return the index of the call of `piece`. Without an index, a new id starts a new call."""
        index = piece.get("index")
        if not isinstance(index, int):
            index = self._last + 1 if piece.get("id") or self._last < 0 else self._last
        self._last = index
        return index


class Joiner:
    """Joins streamed deltas: concatenates texts and collects tool calls by index."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._others: dict[str, Any] = {}
        self._calls: dict[int, _Call] = {}
        self._indices = Indices()

    def add(self, delta: Delta) -> None:
        """Add one delta. Keys with a null value are ignored.

        Raises:
            ValueError: A tool call is malformed.
        """
        for key, value in delta.items():
            if value is None:
                continue
            if key == "role":
                self._others[key] = value
            elif key == "tool_calls":
                self._add_calls(value)
            elif isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
            elif isinstance(value, list):
                if not isinstance(known := self._others.get(key), list):
                    known = self._others[key] = []
                known += value
            else:
                self._others[key] = value

    def message(self) -> dict[str, Any]:
        """Return the message so far, with `role` and `content`, which is None without text."""
        others = {key: [*one] if isinstance(one, list) else one for key, one in self._others.items()}
        message: dict[str, Any] = {"role": "assistant", "content": None, **others}
        message.update((key, "".join(parts)) for key, parts in self._texts.items())
        if self._calls:
            message["tool_calls"] = [self._calls[index].whole() for index in sorted(self._calls)]
        return message

    def _add_calls(self, pieces: object) -> None:
        if not isinstance(pieces, list):
            raise ValueError(f"tool_calls is {type(pieces).__name__}, not a list")
        for piece in pieces:
            if not isinstance(piece, Mapping):
                raise ValueError(f"a tool call is {type(piece).__name__}, not an object")
            self._calls.setdefault(self._indices.of(piece), _Call()).add(piece)


class _Call:
    """A partial tool call. Only arguments are concatenated: some providers repeat the name and the id."""

    def __init__(self) -> None:
        self._call: dict[str, Any] = {}
        self._function: dict[str, Any] = {}
        self._arguments: list[str] = []

    def add(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        if not isinstance(function, Mapping):
            raise ValueError(f"a tool call's function is {type(function).__name__}, not an object")
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            raise ValueError(f"a tool call's arguments are {type(arguments).__name__}, not text")
        self._arguments.append(arguments)
        _keep_first(self._function, function, "arguments")
        _keep_first(self._call, piece, "index", "function")

    def whole(self) -> dict[str, Any]:
        function = {"name": "", **self._function, "arguments": "".join(self._arguments)}
        return {"type": "function", **self._call, "function": function}


def _keep_first(target: dict[str, Any], source: Mapping[str, Any], *skipped: str) -> None:
    for key, value in source.items():
        if key not in skipped and value is not None and not target.get(key):
            target[key] = value


def _pieces(text: str, size: int) -> Iterator[str]:
    if not text:
        yield text
    for start in range(0, len(text), size):
        yield text[start : start + size]
