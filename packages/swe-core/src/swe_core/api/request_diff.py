"""RequestDiff: what each request of a rollout adds to an earlier one, which is all that its turn keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

_KNOWN = 2**16
"""Beginnings of requests that are known at most, in about 10 MB. With more all are forgotten, and each of the
sub-agents that are at work writes its next request whole: seldom, and far less than was written meanwhile."""


class Added(NamedTuple):
    """What one request added: the fields `after`, `kept`, `messages` and `params` of its turn."""

    after: int | None
    kept: int
    messages: list[dict[str, Any]]
    params: dict[str, Any]


class _Earlier(NamedTuple):
    """A turn whose request later ones may go on from.

    Args:
        turn: Its index; None stands for no turn, which has no message and no tools.
        tools: The digest of its tools.
    """

    turn: int | None
    tools: bytes


class RequestDiff:
    """Follows the requests of one rollout, in which sub-agents may take turns. Keeps digests, and of messages
    those of the last request, to which most requests add some."""

    def __init__(self) -> None:
        self._last = _Earlier(None, _digest(None))
        self._messages: list[dict[str, Any]] = []
        self._beginnings: list[bytes] = []
        self._known: dict[bytes, _Earlier] = {}
        """Digest of a request's first messages, or of tools → the first turn whose request had them."""

    def added(self, index: int, body: Mapping[str, Any]) -> Added:
        """What the request `body` of the turn `index` adds to the one that it shares most messages with.

        Where it shares none, that is one with the same tools, else the one given before.
        """
        messages: list[dict[str, Any]] = list(body["messages"])
        tools = body.get("tools")
        this = _Earlier(index, _digest(tools))
        beginnings = self._digests(messages)
        earlier, kept = self._known.get(this.tools, self._last), 0
        for beginning in beginnings:
            if beginning not in self._known:
                break
            earlier, kept = self._known[beginning], kept + 1
        params = {key: value for key, value in body.items() if key not in ("messages", "tools")}
        if this.tools != earlier.tools:
            params["tools"] = tools  # null says that there are none any more
        if len(self._known) > _KNOWN:
            self._known.clear()
        for known in (this.tools, *beginnings):
            self._known.setdefault(known, this)
        self._last, self._messages, self._beginnings = this, messages, beginnings
        return Added(earlier.turn, kept, messages[kept:], params)

    def _digests(self, messages: Sequence[dict[str, Any]]) -> list[bytes]:
        """A digest of the first message, of the first two, and so on. Comparing messages with those of the
        last request costs far less than writing them."""
        pairs = enumerate(zip(self._messages, messages, strict=False))
        shorter = min(len(self._messages), len(messages))
        same = next((n for n, (old, new) in pairs if not _is_same(old, new)), shorter)
        digests = self._beginnings[:same]
        for message in messages[same:]:
            before = digests[-1] if digests else b""
            digests.append(hashlib.blake2b(before + orjson.dumps(message), digest_size=16).digest())
        return digests


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Python takes 1, 1.0 and true for equal."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return list(one) == list(other) and all(_is_same(value, other[key]) for key, value in one.items())
    if type(one) is list:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other) if type(one) is not float else repr(one) == repr(other)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(orjson.dumps(value), digest_size=16).digest()
