"""Conversation: find the turn that a history continues, and make the prompt that follows from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import orjson
from numpy.typing import NDArray

from swe_core.api.engine import ForkCause, Rendered, Sampled
from swe_core.api.messages import Message, message_key
from swe_core.tokens.counting import at_most
from swe_core.tokens.renderer import TAIL, Renderer, Tools

P = TypeVar("P")

_INLINE = 20_000
"""Characters of messages and tools that are rendered in the event loop: a few milliseconds."""
_FRAME = 50
"""Characters that a message or a call counts besides its texts."""
_HUGE = 1_000_000
"""Characters above which prompts wait for one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The ids of one request.

    Args:
        extends: The turn whose ids it begins with; None where it begins a chain.
        new_ids: The ids after those of `extends`, int32 [P].
        length: Number of all its ids, those of `extends` included.
        json: All its ids as JSON text without the brackets: b"1,2,3".
        cause: Why it extends no turn; None where `extends` is set.
        tail: Its last `TAIL` ids, or all of a shorter one.
        place: Its place in the conversation, for `Conversation.add`.
    """

    extends: Sampled | None
    new_ids: NDArray[np.int32]
    length: int
    json: bytes
    rendered: Rendered
    cause: ForkCause | None
    tail: list[int]
    place: Place


@dataclass(slots=True, eq=False)
class Place:
    """The place of a history in the tree of messages; opaque outside this module.

    Args:
        tools: The tools that it is rendered with.
        root: Root of histories with these tools.
        path: Its known messages, each with its node.
        keys: Keys of its messages after `path`.
        tools_size: Bytes of the tools as JSON.
        turn: The deepest turn that it passes; None where it passes none.
        after: Number of its messages up to the end of `turn`.
        cause: Why it extends no turn, if so.
    """

    messages: Sequence[Message]
    tools: Tools
    root: _Root
    path: _Path
    tools_size: int
    keys: list[Hashable]
    turn: _Turn | None
    after: int
    cause: ForkCause

    @property
    def continues(self) -> Sampled | None:
        """Return the tokens of the turn that the history continues; None where it continues none."""
        return self.turn.sampled if self.turn is not None else None


@dataclass(slots=True, eq=False)
class _Node:
    """The end of a history: its continuations, and the turns that sampled its last message."""

    children: dict[Hashable, _Node] = field(default_factory=dict)
    turns: list[_Turn] = field(default_factory=list)
    answered: bool = False


_Path = Sequence[tuple[Message, _Node]]


@dataclass(slots=True, eq=False)
class _Root(_Node):
    """The root of histories, and the path of the last one: most histories extend the last one, and comparing
    messages costs a fraction of their keys."""

    last: _Path = ()


@dataclass(slots=True, eq=False)
class _Turn:
    """A sampled turn: the reply `message`, after the turn `before` if any.

    `text` holds the JSON text of its ids in its first `end` bytes. Turns that extend it share the text, so
    that a conversation keeps its ids once: the first one appends, the others copy.
    """

    sampled: Sampled
    message: Message
    before: _Turn | None
    length: int
    tail: list[int]
    text: bytearray
    end: int

    @property
    def json(self) -> bytes:
        return bytes(self.text[: self.end])


class Conversation:
    """The requests and replies of one rollout's policy: a tree of messages, equal by `message_key`.

    Finding a history's turn costs one comparison or lookup per message; a prompt that extends a turn costs
    its new messages and a copy of the JSON text.

    Args:
        huge: Limits concurrent long prompts of all rollouts, which take a second each.
    """

    def __init__(self, renderer: Renderer, huge: anyio.CapacityLimiter | None = None) -> None:
        self._renderer = renderer
        self._huge = huge
        self._long = anyio.Lock()
        self._roots: dict[bytes, _Root] = {}
        self._answers: set[Hashable] = set()

    async def prepare(self, messages: Sequence[Message], tools: Tools, limit: int | None = None) -> Prompt:
        """Return the prompt of a request: `find`, then `extend`, else `render`; long messages in a thread.

        Args:
            limit: Tokens of the context. Prompts that are much longer are given up early.

        Raises:
            RequestRefused: The chat template refuses the conversation.
            ContextOverflow: The prompt was given up.
        """
        place = self.find(messages, tools)
        prompt = await self._made(self.extend, place, messages[place.after :], limit)
        if prompt is not None:
            return prompt
        return await self._made(self.render, place, messages, limit)

    async def _made(
        self, make: Callable[[Place], P], place: Place, messages: Sequence[Message], limit: int | None
    ) -> P:
        """Return `make(place)`, in a thread where tools and `messages` are long.

        One at a time, so that a rollout does not take the threads of all.
        """
        size = place.tools_size + _size(messages)
        if size <= _INLINE:
            return make(place)

        def work() -> P:
            with at_most(limit):
                return make(place)

        async with self._long:
            return await anyio.to_thread.run_sync(work, limiter=self._huge if size > _HUGE else None)

    def find(self, messages: Sequence[Message], tools: Tools) -> Place:
        """Find the deepest turn that `messages` continue, among turns with the same tools."""
        offered = orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)
        root = self._roots.setdefault(hashlib.sha256(offered).digest(), _Root())
        node: _Node = root
        path: list[tuple[Message, _Node]] = []
        last, after = root.last, 0
        turn: _Turn | None = None
        for at, message in enumerate(messages):
            if at < len(last) and last[at][0] == message:
                step = last[at]
            else:
                last = ()  # what follows in it follows another message
                child = node.children.get(message_key(message))
                if child is None:
                    break
                step = message, child
            path.append(step)
            node = step[1]
            if node.turns:
                turn, after = _choose(node.turns, message, turn), len(path)
        root.last = path
        new = messages[len(path) :]
        keys = [message_key(message) for message in new]
        ours = turn is not None or (bool(new) and new[0]["role"] == "assistant" and node.answered)
        ours = ours or not self._answers.isdisjoint(keys)
        ours = ours or any(message_key(message) in self._answers for message, _ in path)
        cause: ForkCause = "rewritten" if ours else "start"
        return Place(messages, tools, root, path, len(offered), keys, turn, after, cause)

    def extend(self, place: Place) -> Prompt | None:
        """Return the prompt as the ids of the turn and those of the new messages.

        None where there is no turn, another reply than ours follows it, or the renderer cannot prove what
        follows.
        """
        turn, new = place.turn, place.messages[place.after :]
        if turn is None or not new or any(message["role"] == "assistant" for message in new):
            return None
        completion = turn.sampled.completion_ids.tolist()
        ids = self._renderer.extend(turn.tail, completion, new, place.tools)
        if ids is None:
            return None
        tail = ids[-TAIL:] if len(ids) >= TAIL else [*turn.tail, *completion, *ids][-TAIL:]
        return Prompt(
            extends=turn.sampled,
            new_ids=np.array(ids, dtype=np.int32),
            length=turn.length + len(ids),
            json=b",".join((turn.text[: turn.end], _json(ids))),
            rendered=self._renderer.how,
            cause=None,
            tail=tail,
            place=place,
        )

    def render(self, place: Place) -> Prompt:
        """Render the whole prompt. It still extends its turn where it begins with its ids.

        This takes time with a long history; it is thread-safe.

        Raises:
            RequestRefused: The chat template refuses the conversation.
        """
        turn = place.turn
        ids = self._renderer.render(place.messages, place.tools)
        json = _json(ids)
        extends = turn if turn is not None and json.startswith(turn.json + b",") else None
        return Prompt(
            extends=extends.sampled if extends else None,
            new_ids=np.array(ids[extends.length if extends else 0 :], dtype=np.int32),
            length=len(ids),
            json=json,
            rendered="full",
            cause=None if extends else self._cause(place, ids),
            tail=ids[-TAIL:],
            place=place,
        )

    def add(self, prompt: Prompt, sampled: Sampled, message: Message) -> None:
        """Keep the reply to `prompt`, so that later histories can continue it.

        Args:
            sampled: The tokens of the reply, at least one.
            message: The agent's reply, as a canonical message.
        """
        place = prompt.place
        path = [*place.path]
        node: _Node = path[-1][1] if path else place.root
        for said, key in zip(place.messages[len(path) :], place.keys, strict=True):
            node = node.children.setdefault(key, _Node())
            path.append((said, node))
        place.root.last = path
        node.answered = True
        key = message_key(message)
        self._answers.add(key)
        node = node.children.setdefault(key, _Node())
        base = place.turn if prompt.extends is not None else None
        if base is not None and len(base.text) == base.end:
            text = base.text
            text += prompt.json[base.end :]
        else:
            text = bytearray(prompt.json)
        completion = sampled.completion_ids.tolist()
        text += b"," + _json(completion)
        length = prompt.length + len(completion)
        node.turns.append(_Turn(sampled, message, place.turn, length, prompt.tail, text, len(text)))

    def _cause(self, place: Place, ids: Sequence[int]) -> ForkCause:
        """Return why `ids`, the whole history rendered, do not begin with those of its turn."""
        turn = place.turn
        if turn is None or any(message["role"] == "assistant" for message in place.messages[place.after :]):
            return place.cause
        if turn.sampled.completion_ids[-1] not in self._renderer.stop_ids:
            return "truncated"
        before = self._renderer.text(orjson.loads(b"[%b]" % turn.json))
        return "retokenised" if self._renderer.text(ids).startswith(before) else "template"


def _size(messages: Sequence[Message]) -> int:
    """Return about how many characters they are rendered as."""
    size = 0
    for message in messages:
        size += _FRAME + len(message["content"]) + len(message.get("reasoning_content") or "")
        for call in message.get("tool_calls") or ():
            size += _FRAME + len(call["function"]["arguments"])
    return size


def _choose(turns: Sequence[_Turn], message: Message, before: _Turn | None) -> _Turn:
    """Choose among turns with the same `message` the one of a history that passes the turn `before`.

    Compared are, in this order: ids of calls, spelling of arguments, the reasoning if the client sent it,
    `before`. Among equal turns the latest wins.
    """
    if len(turns) == 1:
        return turns[0]
    ids, written, reasoning = _marks(message)

    def alike(turn: _Turn) -> tuple[bool, ...]:
        theirs = _marks(turn.message)
        same_reasoning = not reasoning or theirs[2] == reasoning
        return theirs[0] == ids, theirs[1] == written, same_reasoning, turn.before is before

    return max(reversed(turns), key=alike)


def _marks(message: Message) -> tuple[list[Any], list[str], str]:
    """Return what may differ in messages of one `message_key`: ids of calls, arguments, reasoning."""
    calls = message.get("tool_calls") or ()
    written = [call["function"]["arguments"] for call in calls]
    return [call["id"] for call in calls], written, (message.get("reasoning_content") or "").strip()


def _json(ids: Sequence[int]) -> bytes:
    return orjson.dumps(ids)[1:-1]
