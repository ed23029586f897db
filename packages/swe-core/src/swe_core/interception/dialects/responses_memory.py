"""What the dialect Responses keeps of a rollout: stored responses, and arguments that clients do not echo."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import orjson

from swe_core.interception.dialects.base import BadRequest, Target
from swe_core.system.json_size import values

Item = Mapping[str, Any]

NOT_FOUND = "previous_response_not_found"
"""OpenAI's code for a response that is not stored."""
_MOST = 64 * 1024 * 1024
"""Bytes that one rollout stores; with more all is forgotten. Only hostile clients come near."""
_VALUE = 64
"""Bytes that a value takes besides its JSON."""
_BRANCHES = 8
"""Conversations whose latest response is known, so that the next one stores only what it adds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """A history: the first `kept` items of `before`, then `added`, which the reply ends."""

    before: _Stored | None
    kept: int
    added: Sequence[Item]


class _Branch(NamedTuple):
    """A conversation up to the end of its latest response, which was asked with `asked` of the items."""

    items: Sequence[Item]
    asked: int


class Memory:
    """The memory of one rollout. Histories share their beginnings, so it grows with what is new.

    Attributes:
        size: About how many bytes it takes.
    """

    def __init__(self) -> None:
        self._responses: dict[str, _Stored] = {}
        self._items: dict[str, Item] = {}
        self._branches: OrderedDict[str, _Branch] = OrderedDict()
        self._arguments: dict[tuple[str, str], str] = {}
        self.size = 0

    def history(self, response_id: str) -> list[Item]:
        """Return the items up to the end of a response.

        Raises:
            BadRequest: No such response is stored.
        """
        stored = self._responses.get(response_id)
        if stored is None:
            raise BadRequest(f"Previous response with id '{response_id}' not found.", NOT_FOUND)
        return _items_of(stored)

    def item(self, item_id: object) -> Item | None:
        """Return an item of a stored response."""
        return self._items.get(item_id) if isinstance(item_id, str) else None

    def keep(self, response_id: str, history: Sequence[Item], output: Sequence[Item]) -> None:
        """Store a response to `history`."""
        before, kept = self._nearest(history)
        added = [*history[kept:], *output]
        if not self._grow(orjson.dumps(added)):
            return
        self._responses[response_id] = _Stored(self._responses[before] if before else None, kept, added)
        self._items.update((item["id"], item) for item in output)
        known = self._branches[before] if before else _Branch([], 0)
        if before and kept >= known.asked:  # it continues `before`, whose place it takes
            del self._branches[before]
        self._branches[response_id] = _Branch([*known.items[:kept], *added], len(history))
        if len(self._branches) > _BRANCHES:
            self._branches.popitem(last=False)

    def arguments(self, call_id: str, text: str) -> str | None:
        """Return what the model sampled as the arguments of a custom tool's call, if that was kept."""
        return self._arguments.get((call_id, text))

    def keep_arguments(self, call_id: str, text: str, sampled: str) -> None:
        """Keep sampled arguments that the input `text`, which the client echoes, does not tell."""
        if self._grow(orjson.dumps([call_id, text, sampled])):
            self._arguments[call_id, text] = sampled

    def _grow(self, stored: bytes) -> bool:
        """Count what is to be stored; forget all and return False where it is too much."""
        self.size += len(stored) + _VALUE * values(stored)
        if self.size <= _MOST:
            return True
        self._responses, self._items, self._branches, self._arguments = {}, {}, OrderedDict(), {}
        self.size = 0
        return False

    def _nearest(self, history: Sequence[Item]) -> tuple[str | None, int]:
        """Return the response of `_branches` that shares the most items with `history`, and how many."""
        found: tuple[str | None, int] = None, 0
        for response_id, branch in self._branches.items():
            pairs = zip(branch.items, history, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if shared > found[1]:
                found = response_id, shared
        return found


def kept_in(memory: Mapping[str, Any]) -> int:
    """Return the size of the memory in what the dialect keeps of a rollout."""
    known: Memory | None = memory.get("responses")
    return known.size if known is not None else 0


def memory_of(target: Target) -> Memory:
    """Return the memory of the request's rollout."""
    memory: Memory = target.memory.setdefault("responses", Memory())
    return memory


def _items_of(stored: _Stored) -> list[Item]:
    parts: list[Sequence[Item]] = []
    node: _Stored | None = stored
    wanted = stored.kept + len(stored.added)
    while node is not None and wanted:
        parts.append(node.added[: max(0, wanted - node.kept)])
        wanted, node = min(wanted, node.kept), node.before
    return [item for part in reversed(parts) for item in part]
