"""The pieces of a provider's reply as agents expect them: text as text, and each call by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from json import JSONDecoder
from typing import Any, NamedTuple
from uuid import uuid4

import orjson

from swe_core.api.deltas import Joiner
from swe_core.api.engine import Delta
from swe_core.api.messages import dumps, same_arguments
from swe_core.api.object_prefix import ObjectPrefix
from swe_core.builtin import bounds

_ANSWERS = ("content", "refusal")
_TEXTS = (*_ANSWERS, "reasoning_content", "reasoning")
_THOUGHTS = ("thinking", "reasoning")
"""Beginnings of the types of parts that are reasoning."""
_INSIDE = ("text", *_THOUGHTS, "refusal", "content", "value")
"""Fields of a part that hold its text, or further parts."""
_REPEATS = 100
"""Objects in the arguments of one call, at most."""
_DECODER = JSONDecoder()
CALL = frozenset({"index", "id", "type", "function"})
"""Fields of a call that every agent knows."""
FUNCTION = frozenset({"name", "arguments"})
"""Those of its function."""
_MORE = frozenset({"index", "function"})
"""Fields of a piece that goes on with a call."""
_DEEPEST = 8
"""Levels of parts inside parts."""


class Pieces:
    """Reads the deltas of one reply, and returns what may be relayed of them.

    The returned deltas, joined, are the reply's message. Each call has an index, an id of its own and
    arguments as text. Arguments that a later piece may replace are held back until another call or the end
    of the reply, and those that a piece did replace until the end.
    """

    def __init__(self) -> None:
        self._joiner = Joiner()
        self._calls: list[_Call] = []
        self._begun = 0
        self._ids: set[str] = set()
        self._by_place: dict[tuple[int | None, str], _Call] = {}
        self._last: _Call | None = None

    def add(self, delta: Delta) -> dict[str, Any]:
        """Return what may be relayed after `delta`, perhaps nothing.

        Raises:
            ValueError: A tool call is malformed.
        """
        clean: dict[str, Any] = {}
        calls: Any = None
        for key, value in delta.items():
            if value is None:
                continue
            if key == "tool_calls":
                calls = value or calls
            elif key == "function_call" and isinstance(value, dict):  # as OpenAI once named the only call
                calls = calls or [{"function": value}]
            elif key not in _TEXTS:
                clean[key] = value
            elif isinstance(value, str):
                clean[key] = clean.get(key, "") + value
            else:
                for part in value if isinstance(value, list) else [value]:
                    place = "reasoning_content" if key in _ANSWERS and _is_thought(part) else key
                    if text := _text(part):
                        clean[place] = clean.get(place, "") + text
        if clean:
            self._joiner.add(clean)
        if calls:
            news = self._more(calls)
            if news is None:
                news = [*self._calls_of(calls)]
            if news:
                clean["tool_calls"] = news
        return clean

    def rest(self) -> dict[str, Any]:
        """Return what was held back, at the end of the reply."""
        calls = []
        for call in self._calls:
            text = call.rest()
            if text or call.more or (call.function and call.index is not None):
                calls.append(self._piece(call, text))
        return {"tool_calls": calls} if calls else {}

    def message(self) -> dict[str, Any]:
        """Return the message of what was relayed."""
        message = self._joiner.message()
        calls = [call.whole() for call in self._calls if call.index is not None]
        return {**message, "tool_calls": calls} if calls else message

    @property
    def calls(self) -> int:
        """Return the number of calls so far."""
        return len(self._calls)

    def _more(self, pieces: object) -> list[Any] | None:
        """Return what may be relayed after more arguments of the last call; None where `pieces` are else."""
        piece = pieces[0] if isinstance(pieces, list) and len(pieces) == 1 else None
        last = self._last
        if last is None or type(piece) is not dict or piece.keys() != _MORE or piece["index"] != last.place:
            return None
        function = piece["function"]
        text = function.get("arguments") if type(function) is dict and len(function) == 1 else None
        relayed = last.more_arguments(text) if text and type(text) is str else None
        return None if relayed is None else [piece] if relayed else []

    def _calls_of(self, pieces: object) -> Iterator[dict[str, Any]]:
        """Return what may be relayed after pieces of calls."""
        if not isinstance(pieces, list):
            raise ValueError(f"tool_calls is {type(pieces).__name__}, not a list")
        seen: set[_Call] = set()  # in this delta, which names a call once
        for given in pieces:
            if given is None:
                continue
            piece = _read(given)
            before, call = self._last, self._call_of(piece)
            if call is None or (piece.name and call in seen):
                call = _Call(len(self._calls) if piece.place is None else piece.place)
                if before is not None and not (piece.name or piece.id):  # it was named again for this
                    call.name = before.name
                self._calls.append(call)
            seen.add(call)
            for place in ((None, piece.id), (call.place, ""), (call.place, piece.id)):
                self._by_place[place] = call
            self._last = call
            call.add(piece)
            if before is not None and before is not call:
                yield from self._news(before)
            yield from self._news(call)

    def _call_of(self, piece: _Piece) -> _Call | None:
        """Return the call that `piece` continues; None where it begins another one."""
        named = self._by_place.get((None, piece.id)) if piece.id else None
        if piece.place is None:
            call = named or self._last
        else:
            call = self._by_place.get((piece.place, piece.id)) or self._by_place.get((piece.place, ""))
        is_moved = call is None
        call = call or named or (None if piece.name or piece.id else self._last)
        return call if call is not None and call.goes_on(piece, is_moved) else None

    def _news(self, call: _Call) -> Iterator[dict[str, Any]]:
        """Return what may be relayed of a call. Calls begin in order."""
        if call.index is None and (not call.name or self._calls[self._begun] is not call):
            return
        text = call.news(ended=call is not self._last)
        if text or (call.more or call.function if call.index is not None else call is not self._last):
            yield self._piece(call, text)

    def _piece(self, call: _Call, text: str) -> dict[str, Any]:
        more, function = call.more, {**call.function, "arguments": text}
        call.more, call.function = {}, {}
        if call.index is None:
            call.index = self._begun
            self._begun += 1
            while call.id in self._ids or not call.id:  # missing, or that of another call
                call.id = uuid4().hex[:9]  # all that Mistral takes
            self._ids.add(call.id)
            more = {"id": call.id, "type": "function", **more}
            function = {"name": call.name, **function}
        return {"index": call.index, **more, "function": function}


class _Piece(NamedTuple):
    """A piece of a call. Absent texts are empty; `more` and `function` are the other fields."""

    place: int | None
    id: str
    name: str
    arguments: str
    more: Mapping[str, Any]
    function: Mapping[str, Any]


class _Call:
    """A call while its pieces come.

    Attributes:
        place: The provider's index, or its place where there is none.
        index: The relayed one; None until the call begins.
        given: The pieces of the arguments.
        more: Other fields that are not relayed yet, and `function` those of the function.
        others: All other fields so far, and `of_function` those of the function.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.index: int | None = None
        self.id = self.name = ""
        self.given: list[str] = []
        self.more: dict[str, Any] = {}
        self.function: dict[str, Any] = {}
        self.others: dict[str, Any] = {}
        self.of_function: dict[str, Any] = {}
        self._relayed: list[str] = []
        self._waiting: list[str] = []
        self._starts_over = False
        self._parts: list[str] = []  # since the arguments last started over
        self._size = 0
        self._is_named_again = False  # alone: arguments that follow are perhaps those of another call
        self._prefix = ObjectPrefix()
        self._whole: list[list[str]] = []  # the `_parts` that were an object

    def goes_on(self, piece: _Piece, is_moved: bool) -> bool:
        """Return whether `piece` continues this call: another one has a name, which may be the same.

        Args:
            is_moved: Whether the piece has a new index.
        """
        text = piece.arguments
        begins = text.lstrip().startswith("{")
        if not piece.name or not self.name:
            return not (self._is_named_again and begins)
        if is_moved or (piece.id and self.id and piece.id != self.id):  # perhaps new for each piece
            is_cut = self._size > 0 and not self._prefix.whole
            is_more = len(text) > self._size and self._is_repeated(text)
            return is_cut and piece.name == self.name and (not begins or is_more)
        if piece.name != self.name:
            grown = piece.name.startswith(self.name) or not is_object(text)
            return self._size == 0 and grown
        if not begins or not self._prefix.whole or self._is_empty:
            return True
        if not is_object(text):
            return bool(piece.id)
        return same_arguments(text) == same_arguments("".join(self._parts))

    def add(self, piece: _Piece) -> None:
        """Add a piece that continues this call."""
        self.id = self.id or piece.id
        if piece.name != self.name and self.index is None:  # in pieces, or as far as it is known
            self.name = piece.name if piece.name.startswith(self.name) else self.name + piece.name
            bounds.check_name(self.name)
        if piece.more or piece.function:
            _keep_first(piece.more, self.others, self.more)
            _keep_first(piece.function, self.of_function, self.function)
        text = piece.arguments
        if not text:
            self._is_named_again = (
                bool(piece.name) and self._prefix.whole and not (piece.id or self._is_empty)
            )
            return
        if self._is_repeated(text) or (self._prefix.whole and text.lstrip().startswith("{")):
            self._starts_over = True
            self._parts, self._size, self._prefix = [], 0, ObjectPrefix()
        self._grow(text)
        self._waiting.append(text)

    def more_arguments(self, text: str) -> bool | None:
        """Add arguments that go on for certain, and return whether to relay them; None: perhaps not."""
        held = self._starts_over or self._waiting or self._prefix.whole
        if held or self.index is None or self.index != self.place or self._is_repeated(text):
            return None
        self._grow(text)
        is_held = self._prefix.whole or self._prefix.broken
        (self._waiting if is_held else self._relayed).append(text)
        return not is_held

    def _grow(self, text: str) -> None:
        was_whole = self._prefix.whole
        self._prefix.add(text)
        self._parts.append(text)
        self._size += len(text)
        self.given.append(text)
        if self._prefix.whole and not was_whole:
            self._whole.append(self._parts)

    def news(self, *, ended: bool) -> str:
        """Return the arguments that nothing replaces any more; `ended`: whether another call has begun."""
        prefix = self._prefix
        if self._starts_over or prefix.broken or (prefix.whole and (not ended or self._is_empty)):
            return ""
        text = "".join(self._waiting)
        self._relayed += self._waiting
        self._waiting = []
        return text

    def rest(self) -> str:
        """Return the rest of the arguments: they are read as they came, if that is an object."""
        relayed, text = "".join(self._relayed), "".join(self.given)
        if self._starts_over and not is_object(text):
            whole = ("".join(parts) for parts in reversed(self._whole))
            text = next((found for found in whole if found.startswith(relayed)), text)
        if not is_object(text) and (meant := _meant(text)).startswith(relayed):
            text = meant
        rest = (text or ("{}" if self.name else ""))[len(relayed) :]
        self._relayed.append(rest)
        return rest

    def whole(self) -> dict[str, Any]:
        """Return the call as it was relayed."""
        function = {"name": self.name, **self.of_function, "arguments": "".join(self._relayed)}
        return {"type": "function", "id": self.id, **self.others, "function": function}

    @property
    def _is_empty(self) -> bool:
        """Return whether the arguments are `{}`, which some providers send first."""
        return self._prefix.whole and self._size <= len("{ }")

    def _is_repeated(self, text: str) -> bool:
        return 0 < self._size <= len(text) and text.startswith("".join(self._parts))


def _read(given: object) -> _Piece:
    """Return a provider's piece of a call.

    Raises:
        ValueError: It is malformed.
    """
    if not isinstance(given, dict):
        raise ValueError(f"a tool call is {type(given).__name__}, not an object")
    function = given.get("function") or {}
    if not isinstance(function, dict):
        raise ValueError(f"a tool call's function is {type(function).__name__}, not an object")
    index, arguments = str(given.get("index")).removesuffix(".0"), function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps(arguments)
    return _Piece(
        int(index) if index.isdecimal() else None,
        str(given.get("id") or ""),
        str(function.get("name") or ""),
        arguments,
        {} if given.keys() <= CALL else _others(given, CALL),
        {} if function.keys() <= FUNCTION else _others(function, FUNCTION),
    )


def _others(fields: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in known and value is not None}


def _keep_first(new: Mapping[str, Any], known: dict[str, Any], news: dict[str, Any]) -> None:
    """Add what is new to both. Of each field the first value that says something counts."""
    for key, value in new.items():
        if not known.get(key):
            known[key] = news[key] = value


def is_object(text: str) -> bool:
    """Return whether a text is a whole JSON object."""
    if text.rstrip()[-1:] != "}":
        return False
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        (prefix := ObjectPrefix()).add(text)  # reads numbers beyond floats, and halves of surrogate pairs
        return prefix.whole


def _meant(text: str) -> str:
    """Return the object that arguments stand for: a string holds it, it is there several times, perhaps after
    empty ones, or null is in place of an empty one. Others are returned as they are.
    """
    known: list[Any] = []
    at, found = 0, text
    try:
        while at < len(text) and len(known) < _REPEATS:
            value, end = _DECODER.raw_decode(text, at)
            known.append(value)
            at, found = end, text[at:end]
    except (ValueError, RecursionError):
        return text
    if len(known) == 1 and isinstance(known[0], str) and is_object(known[0]):
        return known[0]
    if known in ([None], [""]):
        return "{}"
    is_one = bool(known) and at == len(text) and isinstance(known[-1], dict)
    return found if is_one and all(value in ({}, known[-1]) for value in known) else text


def _is_thought(part: object) -> bool:
    return isinstance(part, Mapping) and str(part.get("type")).startswith(_THOUGHTS)


def _text(part: object, depth: int = 0) -> str:
    """Return the text of a part, or of parts; "" of others, such as references."""
    if isinstance(part, str):
        return part
    if isinstance(part, list) and depth < _DEEPEST:
        return "".join(_text(one, depth + 1) for one in part)
    if isinstance(part, Mapping) and depth < _DEEPEST:
        return next((text for key in _INSIDE if (text := _text(part.get(key), depth + 1))), "")
    return ""
