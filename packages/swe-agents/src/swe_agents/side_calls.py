"""The calls of Gemini CLI and its forks that are no part of the policy's work."""

from __future__ import annotations

from swe_core import ChatRequest

_SUMMARY = "<state_snapshot>"
"""A mark of the instructions for the summary of a compression."""
_SUGGESTION = "[SUGGESTION MODE:"
"""How Qwen Code asks, with the whole conversation, what the user may type next."""


def side_call(request: ChatRequest) -> str | None:
    """Return "suggestion" or, for a call without tools, "side call"; else None.

    The tools for the web and the titles of sessions make such calls. The summary of a compression is the
    policy's work, because the conversation continues from it.
    """
    if any(message["content"].startswith(_SUGGESTION) for message in request.messages[-1:]):
        return "suggestion"
    return None if request.tools or asks_for_summary(request) else "side call"


def asks_for_summary(request: ChatRequest) -> bool:
    """Return whether a call asks for the summary of a compression."""
    return not request.tools and any(_SUMMARY in message["content"] for message in request.messages[:1])
