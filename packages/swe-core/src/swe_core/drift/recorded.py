"""What every format of a recorded conversation is read into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swe_core.api.messages import Message
from swe_core.tokens.renderer import Tools


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One LLM call.

    Args:
        messages: The request, canonical.
        tools: The tools in chat-completions form; None where there are none.
        reply: The assistant message, canonical.
        sampled: The sampled ids, where the record has them.
        cut: Whether the reply was cut at a limit, so that no stop token ends it.
        dropped: Why the record does not train it; None where it does.
    """

    messages: Sequence[Message]
    tools: Tools
    reply: Message
    sampled: Sequence[int] | None = None
    cut: bool = False
    dropped: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedConversation:
    """The calls of one session, in the order in which they were answered.

    Args:
        name: Where it is from, such as a rollout's id or a file.
    """

    name: str
    turns: Sequence[RecordedTurn]


def turns_of(messages: Sequence[Message], tools: Tools) -> list[RecordedTurn]:
    """Return the turns of a conversation known by its messages: each reply, asked for by all before it."""
    return [
        RecordedTurn(messages[:at], tools, message)
        for at, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
