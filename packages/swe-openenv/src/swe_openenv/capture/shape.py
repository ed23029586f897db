"""Shape: which call of a session continues which, in the words of OpenEnv's rollout graph."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from swe_core.api.agent import DialectName
from swe_core.api.records import Turn
from swe_core.interception.calls import OVER
from swe_core.interception.gate import GONE
from swe_openenv.capture.store import Part

_DIALECTS: Mapping[DialectName, str] = {
    "chat": "openai_chat",
    "responses": "openai_responses",
    "messages": "anthropic",
    "google": "google",
}


@dataclass(slots=True, eq=False)
class Node:
    """One answered call.

    Args:
        id: Unique in its session, and the same after a restart.
        part: Number of its part.
        turn: Index of the turn in its part.
        index: Its place among the answered calls.
        parent: The call that it continues.
        tools: Number of tools that it offers.
        opening: Digest of the prompt's ids where it continues no call; None without ids.
        delivered: Whether the complete reply reached a client.
        children: The calls that continue it.
    """

    id: str
    part: int
    turn: int
    index: int
    parent: Node | None
    tools: int
    opening: bytes | None
    delivered: bool = False
    children: list[Node] = field(default_factory=list)

    @property
    def root(self) -> Node:
        """Return the first call of its conversation."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def path(self) -> list[Node]:
        """Return the calls of its conversation up to this one."""
        found, node = [self], self
        while node.parent is not None:
            node = node.parent
            found.append(node)
        return found[::-1]


class Shape:
    """The calls of a session. It holds no ids and no texts, so that each open session has one.

    Attributes:
        nodes: The answered calls, in order.
        calls: Number of all calls.
        errors: Number of calls that the engine failed to answer.
        last_turn_at: When the last call ended, seconds since the epoch; None before the first.
        dialect: That of the first answered call; None before it.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.calls = 0
        self.errors = 0
        self.last_turn_at: float | None = None
        self.dialect: DialectName | None = None
        self._known: dict[tuple[int, int], Node] = {}
        self._part = -1
        self._tools: dict[int | None, int] = {}
        self._messages: dict[int | None, list[bytes | None]] = {}
        self._ends: dict[bytes, Node] = {}

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Shape:
        """Return the shape of recorded parts."""
        shape = cls()
        for part in parts:
            for turn in part.turns:
                shape.add(part.number, turn)
            for index in part.delivered:
                shape.deliver(part.number, index)
        return shape

    def add(self, part: int, turn: Turn) -> None:
        """Add a call, in the order in which the calls ended."""
        if part != self._part:
            self._part, self._tools, self._messages = part, {None: 0}, {None: []}
        earlier = turn.after if turn.after is not None else (turn.index - 1 if turn.index else None)
        given = turn.params.get("tools", ...)
        self._tools[turn.index] = self._tools.get(earlier, 0) if given is ... else len(given or ())
        self.calls += 1
        self.last_turn_at = turn.started_at.timestamp() + turn.seconds
        parent, end = None, b""
        if turn.tokens is None:
            parent, end = self._by_messages(turn, earlier)
        elif turn.tokens.base is not None:
            parent = self._known.get((part, turn.tokens.base))
        if turn.reply is None:
            self.errors += turn.error not in (GONE, OVER)
            return
        opening = _digest(turn.tokens.prompt) if turn.tokens is not None and parent is None else None
        place = len(self.nodes)
        node = Node(f"{part}-{turn.index}", part, turn.index, place, parent, self._tools[turn.index], opening)
        self.nodes.append(node)
        self.dialect = self.dialect or turn.dialect
        self._known[part, turn.index] = node
        if parent is not None:
            parent.children.append(node)
        if end:
            self._ends[end] = node

    def deliver(self, part: int, turn: int) -> None:
        """Note that a complete reply reached a client."""
        if (part, turn) in self._known:
            self._known[part, turn].delivered = True

    def discarded(self) -> set[Node]:
        """Return the calls that led nowhere: their reply arrived nowhere, or a sibling was continued instead.

        A reply that was continued has arrived.
        """
        found = {node for node in self.nodes if not node.children and not node.delivered}
        siblings = defaultdict[object, list[Node]](list)
        for node in self.nodes:
            if node.parent is not None:
                siblings[node.parent].append(node)
            elif node.opening is not None:
                siblings[node.opening].append(node)
        for group in siblings.values():
            if any(node.children for node in group):
                found.update(node for node in group if not node.children)
        return found

    def stats(self) -> dict[str, int]:
        """Return the counts of OpenEnv's graph."""
        return {
            "n_turns": len(self.nodes),
            "n_roots": sum(node.parent is None for node in self.nodes),
            "n_leaves": sum(not node.children for node in self.nodes),
            "n_forks": sum(len(node.children) > 1 for node in self.nodes),
            "n_discarded": len(self.discarded()),
        }

    @property
    def api_type(self) -> dict[str, str]:
        """Return OpenEnv's word for the dialect, under its key of the metadata; nothing before a call."""
        return {"api_type": _DIALECTS[self.dialect]} if self.dialect else {}

    def _by_messages(self, turn: Turn, earlier: int | None) -> tuple[Node | None, bytes]:
        """Return the call with the most messages, reply included, that this one begins with, and its own end.

        System messages at the beginning do not count: some agents write them anew each time.
        """
        messages = [*self._messages.get(earlier, ())[: turn.kept], *map(_identity, turn.messages)]
        self._messages[turn.index] = messages
        digest, parent = b"", None
        leading = True
        for message in messages:
            leading = leading and message is None
            if not leading:
                digest = hashlib.blake2b(digest + (message or b""), digest_size=16).digest()
                parent = self._ends.get(digest, parent)
        reply = _identity({"role": "assistant", **(turn.reply or {})}) or b""
        return parent, hashlib.blake2b(digest + reply, digest_size=16).digest()


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=16).digest()


def _identity(message: Mapping[str, Any]) -> bytes | None:
    """Return what makes two messages the same: role, text, and names and arguments of calls.

    None for a system message.
    """
    role = message.get("role")
    if role == "system":
        return None
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls = [(one.get("name"), _canonical(one.get("arguments"))) for one in functions]
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    same = [role, str(content).strip(), calls]
    return hashlib.blake2b(orjson.dumps(same), digest_size=16).digest()


def _canonical(arguments: Any) -> Any:
    """Return arguments as a value: agents write the same JSON with other blanks."""
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, TypeError):
        return str(arguments)
