"""What a provider attaches to its replies, such as signatures and reasoning: it goes back with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson

from swe_core.api.engine import ChatRequest
from swe_core.api.messages import Message, message_key, text_of
from swe_core.builtin.openai.pieces import CALL, FUNCTION

_SAID = frozenset({"role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio"})
"""Fields of a reply that every agent receives, or that no provider wants back."""
_TEXTS = ("reasoning_content", "reasoning")
"""Names of the field with the reasoning's text."""
_REASONING = frozenset({*_TEXTS, "reasoning_text", "reasoning_details"})
_LISTS = frozenset({"reasoning_details", "thinking_blocks"})
"""Names of fields with parts of the reasoning."""
_MOST = 64 * 1024 * 1024
"""Bytes that one rollout keeps; with more all is forgotten."""

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply.

    Args:
        ids: The provider's ids of its calls.
        fields: What it had besides text and calls.
        calls: What each call had besides its function.
    """

    ids: tuple[str, ...]
    fields: Fields
    calls: Sequence[Fields]


class Memory:
    """The replies of one rollout.

    A message of the agent is the reply that is equal by `message_key`. Of several it is the one whose calls
    have the same ids, and which answered an equal message, where there is one; further equal messages are the
    replies after it. Reasoning that the agent sent gives way to what the reply had. A message that the agent
    rewrote is known by the ids and names of its calls. Of any other, the provider gets the reasoning that the
    agent sent, under the provider's name for it.

    Args:
        takes: Fields that the provider takes back; None: all that it gives.
    """

    def __init__(self, takes: Collection[str] | None) -> None:
        self._takes = takes
        self._text = next((name for name in _TEXTS if name in takes), None) if takes is not None else None
        self._replies: dict[Hashable, list[_Reply]] = {}
        self._size = 0
        self._ids: set[str] = set()
        self._attached = False
        self._waiting: list[tuple[int, bytes]] = []  # after what each came; read when one is needed
        self._thought = False  # in the first of `_TEXTS`

    def keep(self, request: ChatRequest, message: Message) -> None:
        """Keep the complete reply `message` to `request`."""
        with suppress(KeyError, TypeError, AttributeError, ValueError):  # a reply that no agent sends back
            kept = orjson.dumps(message)
            self._attached = self._attached or not message.keys() <= _SAID
            for call in message.get("tool_calls") or ():
                self._attached = self._attached or _has_more(call)
                self._ids.add(_id(call))
            self._waiting.append((_before(request.messages), kept))
            self._size += len(kept)
        if self._size > _MOST:
            self._replies, self._waiting, self._size = {}, [], 0

    def _index(self, before: int, message: Message) -> None:
        calls = message.get("tool_calls") or ()
        fields = dict(self._others(message, _SAID))
        for name in _LISTS & fields.keys():
            fields[name] = _joined(fields[name])
        reply = _Reply(_ids(calls), fields, [self._call(call) for call in calls])
        key = message_key({**message, "content": text_of(message.get("content"))})
        named = [place for place, id_ in zip(_named(calls), reply.ids, strict=True) if id_]
        for place in {*_places(key, reply.ids, before), *named}:
            self._replies.setdefault(place, []).append(reply)
        self._thought = self._thought or bool(fields.get(_TEXTS[0]))
        if self._takes is None:
            self._text = next((name for name in _TEXTS if name in fields), self._text)

    def _is_as_told(self, request: ChatRequest) -> bool:
        """Return whether the messages are as the provider takes them where nothing was attached: each result
        after its call, with the provider's id."""
        follows, known = False, self._ids
        for raw, message in zip(request.body["messages"], request.messages, strict=True):
            role = message["role"]
            if role == "tool":
                if not follows or raw.get("tool_call_id") not in known:
                    return False
            elif role == "assistant":
                follows = True
                if not raw.keys() <= _SAID:
                    return False
                for call in message.get("tool_calls") or ():
                    if call["id"] not in known:
                        return False
            else:
                follows = False
        return True

    def restored(self, request: ChatRequest) -> list[Any]:
        """Return the messages of `request` as the provider takes them.

        Results have the ids of their calls, and come directly after them: OpenAI takes nothing in between.
        """
        if not self._attached and self._is_as_told(request):
            return list(request.body["messages"])
        waiting, self._waiting = self._waiting, []
        for before, kept in waiting:
            with suppress(KeyError, TypeError, AttributeError, ValueError):
                self._index(before, request.as_told(orjson.loads(kept)))
        sent: list[list[Any]] = []  # each message with the results of its calls
        answered: dict[str, list[Any]] = {}
        ids: dict[str, str] = {}
        met: Counter[Hashable] = Counter()
        for at, (raw, message) in enumerate(zip(request.body["messages"], request.messages, strict=True)):
            known = message.get("tool_call_id")
            if known is not None and (own := ids.get(known, known)) != raw.get("tool_call_id"):
                raw = {**raw, "tool_call_id": own}
            if known in answered:
                answered[known].append(raw)
                continue
            if message["role"] == "assistant":
                before = _before(request.messages[max(at - 1, 0) : at])
                raw, own_ids = self._restored(raw, message, before, met)
                ids |= own_ids
                if self._thought and raw.get(
                    "tool_calls"
                ):  # DeepSeek wants it of each reply, and gives it of some
                    raw = {_TEXTS[0]: "", **raw}
            sent.append([raw])
            answered |= dict.fromkeys(_ids(message.get("tool_calls") or ()), sent[-1])
        return list(chain.from_iterable(sent))

    def _restored(
        self, raw: dict[str, Any], message: Message, before: int, met: Counter[Hashable]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a message of the assistant as the provider takes it, and the provider's ids of its calls."""
        if not self._replies:
            return self._renamed(raw), {}
        calls = message.get("tool_calls") or ()
        ids, named = _ids(calls), _named(calls)
        if reply := self._next(_places(message_key(message), ids, before), met):
            met.update(set(named))
            own = dict(zip(ids, reply.ids, strict=True)) if _distinct(ids) and _distinct(reply.ids) else {}
            return _with(raw, reply.fields, reply.calls, [own.get(id_, id_) for id_ in ids]), own
        found = [self._next([place], met) for place in named]
        first = next(filter(None, found), None)
        if first is None:
            return self._renamed(raw), {}
        extras = [
            reply.calls[reply.ids.index(id_)] if reply else {} for reply, id_ in zip(found, ids, strict=True)
        ]
        if not extras[0]:  # Gemini signs the first of parallel calls, and wants the first one signed
            extras[0] = first.calls[0]
        return _with(raw, first.fields, extras, ids), {}

    def _next(self, places: Sequence[Hashable], met: Counter[Hashable]) -> _Reply | None:
        """Return the next reply at the first of `places` that has any; the last one stays."""
        met.update(places)
        found = next((place for place in places if place in self._replies), None)
        if found is None:
            return None
        replies = self._replies[found]
        return replies[min(met[found], len(replies)) - 1]

    def _renamed(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return a message with the agent's own reasoning under the provider's name, or without it."""
        if (self._takes is None and self._text is None) or _REASONING.isdisjoint(raw):
            return raw
        taken = _REASONING.difference(_TEXTS) if self._takes is None else self._takes
        kept = {key: value for key, value in raw.items() if key not in _REASONING or key in taken}
        text = next((text for name in _TEXTS if (text := raw.get(name)) and isinstance(text, str)), None)
        return {**kept, self._text: text} if self._text and text else kept

    def _others(self, fields: Fields, plain: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Return the fields besides `plain` that the provider takes back."""
        for key, value in fields.items():
            if key not in plain and value is not None and (self._takes is None or key in self._takes):
                yield key, value

    def _call(self, call: Fields) -> Fields:
        """Return what a call has besides its function, and the function besides its arguments."""
        found = dict(self._others(call, CALL))
        if function := dict(self._others(call["function"], FUNCTION)):
            found["function"] = function
        return found


def _has_more(call: Fields) -> bool:
    """Return whether a call has fields that agents do not send back."""
    return not (call.keys() <= CALL and call["function"].keys() <= FUNCTION)


def _before(messages: Sequence[Message]) -> int:
    """Return what stands for the last of some messages, whose text may be long."""
    return hash(message_key(messages[-1])) if messages else 0


def _places(key: Hashable, ids: tuple[str, ...], before: int) -> list[Hashable]:
    """Return where a reply is kept: by its text and calls, more exact places first."""
    return [(key, ids, before), (key, ids), key]


def _named(calls: Sequence[Fields]) -> list[Hashable]:
    """Return where the reply with each of some calls is kept."""
    return [(id_, call["function"]["name"]) for id_, call in zip(_ids(calls), calls, strict=True)]


def _ids(calls: Sequence[Fields]) -> tuple[str, ...]:
    return tuple(map(_id, calls))


def _id(call: Fields) -> str:
    return str(call.get("id") or "")


def _distinct(ids: Collection[str]) -> bool:
    return "" not in ids and len(set(ids)) == len(ids)


def _with(
    raw: Mapping[str, Any], fields: Fields, extras: Sequence[Fields], ids: Sequence[str]
) -> dict[str, Any]:
    """Return a message with the fields of a reply, and with ids and further fields of its calls."""
    sent = {key: value for key, value in raw.items() if key not in _REASONING} | dict(fields)
    if any(extras) or _ids(raw.get("tool_calls") or ()) != tuple(ids):
        sent["tool_calls"] = [
            {**call, **extra, "id": id_, "function": {**call["function"], **extra.get("function", {})}}
            for call, id_, extra in zip(raw["tool_calls"], ids, extras, strict=True)
        ]
    return sent


def _joined(details: Any) -> Any:
    """Return the details of reasoning with those that a stream cut into pieces in one."""
    if not isinstance(details, list) or not all(isinstance(one, dict) for one in details):
        return details
    joined: list[dict[str, Any]] = []
    for one in details:
        last = joined[-1] if joined else {}
        same = all(one.get(key) == last.get(key) for key in ("index", "type"))
        named = {one.get("id"), last.get("id")} - {None}
        of_a_block = one.get("type") == "thinking" and not last.get("signature")
        if not same or len(named) > 1 or (one.get("index") is None and not of_a_block):
            joined.append(dict(one))
            continue
        for key, value in one.items():
            if (
                key in ("text", "summary", "data", "thinking")
                and isinstance(last.get(key), str)
                and isinstance(value, str)
            ):
                last[key] += value
            elif value is not None:
                last[key] = value
    return joined
