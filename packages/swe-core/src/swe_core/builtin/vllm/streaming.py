"""Streamer: sends a reply to the agent while it is sampled. assistant_message: the whole reply."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swe_core.api.deltas import whole
from swe_core.api.engine import Emit
from swe_core.api.messages import Message
from swe_core.errors import EngineError
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_core.tokens.reply_reader import ReplyReader

_TEXTS = ("reasoning_content", "content")


class Streamer:
    """Passes on the text of a reply as it grows, and its tool calls at the end.

    A piece is made when it is read: a slow reader gets long pieces, and an id that comes while one waits
    costs next to nothing.

    Args:
        ids: The sampled ids, a list that grows.
        tail: The end of the prompt, as `Renderer.parse` takes it.
        stops: Texts at which the visible text ends. What may be the beginning of one is held back.
    """

    def __init__(
        self,
        renderer: Renderer,
        ids: Sequence[int],
        tail: Sequence[int],
        tools: Tools,
        emit: Emit,
        stops: Sequence[str],
    ) -> None:
        self._reader = ReplyReader(renderer, ids, tail, tools)
        self._name = renderer.name
        self._emit = emit
        self._stops = stops
        self._held = max(map(len, stops), default=1) - 1
        self._sent = dict.fromkeys(_TEXTS, "")
        self._waiting: _Piece | None = None

    async def grown(self) -> None:
        """Announce more ids."""
        if self._waiting is None and self._reader.may_tell():
            self._waiting = _Piece(self)
            await self._emit(self._waiting)

    async def finish(self, message: dict[str, Any]) -> None:
        """Send the rest of the whole `message`.

        Raises:
            EngineError: It does not begin with what was sent, so that the renderer must not stream.
        """
        delta: dict[str, Any] = {}
        for key in _TEXTS:
            text, sent = message.get(key) or "", self._sent[key]
            if not text.startswith(sent):
                raise EngineError(
                    f"the renderer {self._name!r} took back {key} that the agent was sent already: "
                    "it must say that it does not stream"
                )
            if len(text) > len(sent):
                delta[key] = text[len(sent) :]
        if "tool_calls" in message:
            delta["tool_calls"] = whole(message)["tool_calls"]
        if self._waiting is not None:  # not read yet: it becomes the rest
            self._waiting.made = delta
        elif delta:
            await self._emit(delta)

    def read(self) -> dict[str, Any]:
        """Return the unread text."""
        self._waiting = None
        delta = {}
        for key, text in zip(_TEXTS, self._reader.read(), strict=True):
            text = cut(text, self._stops)
            text = text[: max(0, len(text) - self._held)]
            sent = self._sent[key]
            if len(text) > len(sent) and text.startswith(sent):
                self._sent[key] = text
                delta[key] = text[len(sent) :]
        return delta


class _Piece(Mapping[str, Any]):
    """A delta of all text from the piece before it up to when it is read first."""

    def __init__(self, streamer: Streamer) -> None:
        self.made: dict[str, Any] | None = None
        self._streamer = streamer

    def _whole(self) -> dict[str, Any]:
        if self.made is None:
            self.made = self._streamer.read()
        return self.made

    def __getitem__(self, key: str) -> Any:
        return self._whole()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())


def assistant_message(parsed: Parsed, stops: Sequence[str], most_calls: int | None) -> Message:
    """Return the agent's reply: the text up to the first of `stops`, and at most so many calls."""
    content = cut(parsed.content, stops)
    message: Message = {"role": "assistant", "content": content}
    if parsed.reasoning:
        message["reasoning_content"] = cut(parsed.reasoning, stops)
    if parsed.calls:
        message["content"] = content or None
        message["tool_calls"] = [
            {
                "id": id_ or f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for name, arguments, id_ in parsed.calls[:most_calls]
        ]
    return message


def cut(text: str, stops: Sequence[str]) -> str:
    """Return `text` up to the first of `stops` in it."""
    stop = first_stop(text, stops)
    return text if stop is None else text[: text.find(stop)]


def first_stop(text: str, stops: Sequence[str]) -> str | None:
    """Return the one of `stops` that is first in `text`; None where there is none."""
    return min((stop for stop in stops if stop in text), key=text.find, default=None)
