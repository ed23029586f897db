"""The conversations of a rollout: each is what the model had seen and said at its last call."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from swe_core.api.agent import AgentEvent
from swe_core.api.messages import Message, message_key
from swe_core.api.records import UNDELIVERED, Turn, requests_of
from swe_core.errors import UsageError
from swe_core.interception.dialects.base import BadRequest, Target
from swe_core.interception.dialects.chat import ChatCompletions

_CHAT = ChatCompletions()
_TARGET = Target(_CHAT.routes[0])
_LEVELS = 100
"""Levels of a call's arguments. The libraries write about 200, with those of the conversation around it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation: that of the main agent, of a sub-agent, or before or after a compaction.

    Args:
        messages: Canonical messages (`swe_core.api.messages`). The last is a reply.
        tools: The tools of its last call, in chat-completions form; None where there are none.
        replies: Place in `messages` → the call that the model answered with it. Other assistant messages are
            the client's own, such as a reply that it shortened.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    replies: Mapping[int, Turn] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Answered:
    """An answered call, and the one whose reply its request continues."""

    turn: Turn
    request: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    before: _Answered | None
    continued: bool = False


def conversations(turns: Sequence[Turn]) -> list[Conversation]:
    """Return the conversations of a rollout, in the order in which they ended.

    A call continues the one whose reply is the last that its request contains. Calls that nothing continues
    end a conversation. Failed calls, auxiliary ones and replies that never arrived are left out.

    Raises:
        UsageError: The calls are no conversation of text.
    """
    canonical = [_canonical(turn) for turn in turns]
    found: list[_Answered] = []
    known: dict[Hashable, dict[int, _Answered]] = {}
    for turn, body in zip(canonical, requests_of(canonical), strict=True):
        lost = turn.tokens is not None and turn.tokens.dropped == UNDELIVERED
        if turn.reply is None or turn.auxiliary is not None or lost:
            continue
        before = _continued(turn, body["messages"], known)
        if before is not None:
            before.continued, before.request = True, ()
        found.append(_Answered(turn, body["messages"], body.get("tools") or None, before))
        known.setdefault(message_key(turn.reply), {})[turn.index] = found[-1]
    return [_conversation(last) for last in found if not last.continued]


def told(events: Iterable[AgentEvent]) -> Conversation | None:
    """Return a transcript as a conversation, for a rollout whose calls were not recorded.

    Each line of the transcript is a message. A result belongs to the oldest call of its tool without one.

    Returns:
        None for an empty transcript.
    """
    messages: list[Message] = []
    waiting: list[tuple[str | None, str]] = []
    for number, event in enumerate(events):
        if event.kind == "tool_call":
            call_id = f"call_{number}"
            waiting.append((event.tool, call_id))
            function = {"name": event.tool or "", "arguments": event.text}
            call = {"id": call_id, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif event.kind == "tool_result":
            mine = next((one for one in waiting if one[0] == event.tool), None)
            result: Message = {"role": "tool", "content": event.text}
            if mine is not None:
                waiting.remove(mine)
                result["tool_call_id"] = mine[1]
            messages.append(result)
        elif event.kind == "reasoning":
            messages.append({"role": "assistant", "content": "", "reasoning_content": event.text})
        elif event.kind == "text":
            messages.append({"role": "assistant", "content": event.text})
        else:
            messages.append({"role": "system", "content": event.text})
    return Conversation(messages) if messages else None


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a canonical tool call; None where they are no JSON object, or a deep one."""
    try:
        value = orjson.loads(call["function"]["arguments"])
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and not _is_deep(value) else None


def _is_deep(value: Any) -> bool:
    """Return whether JSON has more levels than all libraries can write: they read more than they write."""
    level = [value]
    for _ in range(_LEVELS):
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _canonical(turn: Turn) -> Turn:
    reply = _parsed(turn, [turn.reply])[0] if turn.reply is not None else None
    messages = _parsed(turn, turn.messages) if turn.messages else []
    return turn.model_copy(update={"messages": messages, "reply": reply})


def _parsed(turn: Turn, messages: Sequence[Any]) -> list[Message]:
    try:
        return list(_CHAT.parse(orjson.dumps({"messages": messages}), _TARGET).messages)
    except BadRequest as error:
        raise UsageError(f"call {turn.index} is no conversation of text: {error}") from None


def _continued(
    turn: Turn, request: Sequence[Message], known: Mapping[Hashable, dict[int, _Answered]]
) -> _Answered | None:
    """Return the call whose reply is the last in `request`. Sub-agents may have said the same: the one whose
    request this one extends is meant."""
    for message in reversed(request):
        if message["role"] == "assistant" and (same := known.get(message_key(message))):
            return same.get(-1 if turn.after is None else turn.after) or same[next(reversed(same))]
    return None


def _conversation(last: _Answered) -> Conversation:
    messages = [*last.request, last.turn.reply or {}]
    replies = {len(messages) - 1: last.turn}
    spoken = [place for place, message in enumerate(last.request) if message["role"] == "assistant"]
    keys = {place: message_key(messages[place]) for place in spoken}
    before = last.before
    while before is not None:  # a client may have changed replies in between: they stay without a call
        key = message_key(before.turn.reply or {})
        place = next((one for one in reversed(spoken) if keys[one] == key), None)
        if place is not None:
            replies[place] = before.turn
            del spoken[spoken.index(place) :]
        before = before.before
    return Conversation(messages, last.tools, dict(sorted(replies.items())))
