"""Anew: whole conversations as ids, as the model's own chat template renders them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swe_core.api.messages import Message
from swe_core.drift.recorded import RecordedTurn
from swe_core.tokens.renderer import Renderer, Tools
from swe_core.tokens.template_renderer import ChatTemplate

Ids = NDArray[np.int32]
_THINK, _CLOSED = "<think>", "\n</think>\n\n"


class Anew:
    """Renders each conversation from its first message on.

    Args:
        renderer: Renders where there is no template.
        template: The model's own chat template.
    """

    def __init__(self, renderer: Renderer, template: ChatTemplate | None) -> None:
        self._renderer = renderer
        self._template = template
        self._segments: dict[str, Ids] = {}
        self._marks: re.Pattern[str] | None = None
        self._checked = False
        if template is not None and template.tokenizer.is_fast:
            marks = sorted(map(str, template.tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
            self._marks = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None

    def render(self, messages: Sequence[Message], tools: Tools) -> Ids:
        """Return the prompt of a request.

        Raises:
            RequestRefused: The template refuses the conversation.
        """
        if self._template is None:
            return np.array(self._renderer.render(messages, tools), dtype=np.int32)
        return self._encode(self._template.text(messages, tools))

    def reply(self, turn: RecordedTurn, prompt: Ids) -> list[int]:
        """Return the ids of a reply whose sampled ids are unknown: what the format prints after the prompt.

        Thinking that the prompt opened and the format does not print is closed at once; a stop token ends the
        reply.

        Raises:
            RequestRefused: The template refuses the conversation.
        """
        messages, stops = [*turn.messages, turn.reply], self._renderer.stop_ids
        if self._template is None:
            printed = self._renderer.render(messages, turn.tools, cue=False)
            ids = printed[common(np.array(printed, dtype=np.int32), prompt) :]
        else:
            before = self._template.text(turn.messages, turn.tools)
            after = self._template.text(messages, turn.tools, prompt=False)
            text = after[_shared(before, after) :]
            if before.rstrip().endswith(_THINK) and _CLOSED.strip() not in text:
                text = _CLOSED + text
            ids = self._template.ids(text)
        stop = next((at for at, id_ in enumerate(ids) if id_ in stops), None)
        return [*ids, min(stops)] if stop is None else ids[: stop + 1]

    def _encode(self, text: str) -> Ids:
        """Return the ids of `text`. Texts between marks are encoded once, where that gives the same ids."""
        template = self._template
        if template is None:
            raise RuntimeError("there is no template")
        if self._marks is None:
            return np.array(template.ids(text), dtype=np.int32)
        parts = [part for part in self._marks.split(text) if part]
        for part in parts:
            if part not in self._segments:
                self._segments[part] = np.array(template.ids(part), dtype=np.int32)
        ids: Ids = np.concatenate([np.empty(0, dtype=np.int32), *map(self._segments.__getitem__, parts)])
        if not self._checked:  # tokenizers may treat the beginning of a text in another way
            self._checked = True
            whole = np.array(template.ids(text), dtype=np.int32)
            if not np.array_equal(ids, whole):
                self._marks = None
                return whole
        return ids


def common(one: Ids, other: Ids) -> int:
    """Return the length of the common beginning."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
