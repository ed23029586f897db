"""Streamer: what the agent is told while its reply is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swe_core.deltas import whole
from swe_core.engine import Emit
from swe_core.errors import EngineError
from swe_core.tokens.renderer import Renderer, Tools

_STEP = 8
"""Ids after which a reply is read again, at least; of a long one 5 %, so that all readings together cost
some twenty times the last one."""
_TEXTS = ("reasoning_content", "content")


class Streamer:
    """Passes on the text of a reply as it grows, and its tool calls at the end.

    Args:
        tail: The end of the prompt, as `Renderer.parse` takes it.
        stops: Texts at which the visible text ends. What may be the beginning of one is held back.
    """

    def __init__(
        self, renderer: Renderer, tail: Sequence[int], tools: Tools, emit: Emit, stops: Sequence[str]
    ) -> None:
        self._renderer = renderer
        self._tail = tail
        self._tools = tools
        self._emit = emit
        self._stops = stops
        self._held = max(map(len, stops), default=1) - 1
        self._sent = dict.fromkeys(_TEXTS, "")
        self._read = 0

    async def add(self, ids: Sequence[int]) -> None:
        """Take all ids so far."""
        if len(ids) - self._read < max(_STEP, len(ids) // 20):
            return
        self._read = len(ids)
        parsed = self._renderer.parse(ids, self._tail, self._tools, ended=False)
        await self._grow("reasoning_content", parsed.reasoning or "")
        await self._grow("content", parsed.content)

    async def finish(self, message: dict[str, Any]) -> None:
        """Send what is missing of the whole `message`.

        Raises:
            EngineError: It does not begin with what was sent, so that the renderer must not stream.
        """
        delta: dict[str, Any] = {}
        for key in _TEXTS:
            text, sent = message.get(key) or "", self._sent[key]
            if not text.startswith(sent):
                raise EngineError(
                    f"the renderer {self._renderer.name!r} took back {key} that the agent was sent already: "
                    "it must say that it does not stream"
                )
            if len(text) > len(sent):
                delta[key] = text[len(sent) :]
        if "tool_calls" in message:
            delta["tool_calls"] = whole(message)["tool_calls"]
        if delta:
            await self._emit(delta)

    async def _grow(self, key: str, text: str) -> None:
        text = cut(text, self._stops)
        text = text[: len(text) - self._held] if self._held else text
        sent = self._sent[key]
        if len(text) > len(sent) and text.startswith(sent):
            self._sent[key] = text
            await self._emit({key: text[len(sent) :]})


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops` in it."""
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(ends)] if ends else text
