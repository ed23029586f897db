"""OwnCalls: which conversations of a rollout the agent began, by what its requests say.

Each command that the agent runs can read the gate's token, so a request with the token may be the policy's
writing. docs/internals/tokens.md says what is trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from swe_core.api.engine import ChatRequest
from swe_core.api.messages import message_key

if TYPE_CHECKING:
    from swe_core.tokens.foreign import Start  # which needs numpy

_TELLING = 32
"""Characters from which a text that is found again is no chance."""
_READ = 2**18
"""Characters of a request that are searched."""
_REPLIES = 256
"""Latest replies that are looked for."""
_ORDERS = frozenset(("instructions", "message", "objective", "prompt", "task"))
"""Arguments of tools by which agents give a sub-agent its first message."""


class OwnCalls:
    """Judge how conversations begin. Not thread-safe: each gate has its own."""

    def __init__(self) -> None:
        self._systems: set[str] = set()
        self._firsts: set[str] = set()
        self._orders: set[tuple[str, str]] = set()
        self._replies: list[tuple[Mapping[str, Any], bool]] = []
        self._turns: list[int] = []
        self._keys: dict[object, int] = {}
        self._keyed = 0

    def replied(self, turn: int, reply: Mapping[str, Any], summary: bool) -> None:
        """Note the reply of a turn; later requests are compared with it."""
        self._replies.append((reply, summary))
        self._turns.append(turn)

    def start(self, request: ChatRequest, *, early: bool, announced: bool) -> Start:
        """Return whose the beginning of a conversation is.

        Args:
            request: A call that continues no reply by its ids.
            early: Whether it came before the policy had said anything, so that the agent has made it.
            announced: Whether the agent's plugin says that the agent begins such conversations.
        """
        system, first = _system(request), _first(request)
        if early:
            self._systems |= {system} - {""}
            self._firsts |= {first} - {""}
            self._orders |= set(_orders(request.tools or ()))
            return "early"
        same = system in self._systems or first in self._firsts
        if same and self.repeats_a_reply(request):
            return "own"
        texts = "\n".join(islice(_texts(request), 4096))[:_READ]
        latest = list(islice(reversed(self._replies), _REPLIES))
        if any(summary and _is_in(reply.get("content"), texts) for reply, summary in latest):
            return "own"  # a conversation that continues from a summary
        same = same or any(_is_in(text, texts) for text in self._firsts)
        if same and any(_is_in(reply.get("content"), texts) for reply, _ in latest):
            return "own"  # as a compaction asks for, or continues from
        if (
            announced
            or (request.summary and same)
            or any(self._orders_it(reply, first) for reply, _ in latest)
        ):
            return "own"
        return "again" if system in self._systems and first in self._firsts else "foreign"

    def _orders_it(self, reply: Mapping[str, Any], first: str) -> bool:
        """Return whether a call of `reply` gives a sub-agent the message `first`."""
        return any(
            (call["function"]["name"], name) in self._orders and _is_in(value, first)
            for call in reply.get("tool_calls") or ()
            for name, value in _arguments(call).items()
        )

    def repeats_a_reply(self, request: ChatRequest, after: int = -1) -> bool:
        """Return whether a message of the assistant is what a turn later than `after` replied."""
        new = range(self._keyed, len(self._replies))
        self._keys |= {_key(self._replies[at][0]): self._turns[at] for at in new}
        self._keys.pop(None, None)
        self._keyed = len(self._replies)
        said = (message for message in reversed(request.messages) if message["role"] == "assistant")
        return any(self._keys.get(_key(message), -1) > after for message in islice(said, _REPLIES))


def _system(request: ChatRequest) -> str:
    return "\n".join(one["content"] for one in request.messages[:1] if one["role"] == "system")


def _first(request: ChatRequest) -> str:
    """Return the first message of a user."""
    return next((one["content"] for one in request.messages[:16] if one["role"] == "user"), "").strip()


def _texts(request: ChatRequest) -> Iterator[str]:
    return (one["content"] for one in request.messages if one["role"] != "assistant")


def _is_in(text: object, texts: str) -> bool:
    return isinstance(text, str) and len(text := text.strip()) >= _TELLING and text in texts


def _key(message: Mapping[str, Any]) -> object:
    """Return what is equal for equal messages of the assistant; None for an empty one."""
    content, calls = message.get("content") or "", message.get("tool_calls") or ()
    if not (content.strip() or calls):
        return None
    return message_key({"role": "assistant", "content": content, "tool_calls": calls})


def _orders(tools: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the tools that may start a sub-agent, each with the argument that orders it."""
    for tool in tools:
        function = tool.get("function", tool)
        schema = function.get("parameters") if isinstance(function, Mapping) else None
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if isinstance(properties, Mapping):
            yield from ((str(function.get("name")), name) for name in _ORDERS & properties.keys())


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError, TypeError):  # a plugin's reply may be anything
        return {}
    return arguments if isinstance(arguments, dict) else {}
