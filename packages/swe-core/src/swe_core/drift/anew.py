"""Anew: whole conversations as ids, as the model's own chat template renders them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swe_core.api.messages import Message
from swe_core.drift.recorded import RecordedTurn
from swe_core.errors import RequestRefused
from swe_core.tokens.probe_messages import user
from swe_core.tokens.renderer import Renderer, Tools
from swe_core.tokens.template_renderer import ChatTemplate

Ids = NDArray[np.int32]
_ASKED = user("Hello.")
_CHECKED = 100_000
"""Characters of texts that are encoded a second time as a check; of the first one, whatever its size."""
_THINK, _END_OF_THINKING = "<think>", "</think>"


class Anew:
    """Renders each conversation from its first message on.

    Args:
        renderer: Renders where there is no template; knows the stop tokens.
        template: The model's own chat template.
    """

    def __init__(self, renderer: Renderer, template: ChatTemplate | None) -> None:
        self._renderer = renderer
        self._template = template
        self._segments: dict[str, Ids] = {}
        self._marks: re.Pattern[str] | None = None
        self._checked = 0
        self._last: tuple[Sequence[Message], Tools, bool, Ids] | None = None
        if template is not None and template.tokenizer.is_fast:
            marks = sorted(map(str, template.tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
            self._marks = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None

    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> Ids:
        """Return a conversation as ids.

        Args:
            cue: Whether to end with the generation prompt.

        Raises:
            RequestRefused: The template refuses the conversation.
        """
        last = self._last
        if last is not None and (last[0], last[2]) == (messages, cue) and last[1] == tools:
            return last[3]
        if self._template is None:
            ids = _array(self._renderer.render(messages, tools, cue=cue))
        else:
            ids = self._encode(self._template, self._template.text(messages, tools, prompt=cue))
        self._last = messages, tools, cue, ids
        return ids

    def reply(self, turn: RecordedTurn) -> list[int]:
        """Return what is printed for a reply after the generation prompt, where its sampled ids are unknown.

        The reply is rendered alone after one user message, where templates keep its thinking; with its whole
        history where the template refuses that. Thinking that the prompt opened is closed. A stop token ends
        the reply unless it was cut.

        Raises:
            RequestRefused: The template refuses the conversation.
        """
        try:
            ids = self._printed([_ASKED], turn)
        except RequestRefused:
            ids = self._printed(turn.messages, turn)
        stops = self._renderer.stop_ids
        end = next((at for at, id_ in enumerate(ids) if id_ in stops), len(ids))
        return ids[:end] if turn.cut and end else [*ids[:end], *(ids[end : end + 1] or [min(stops)])]

    def _printed(self, messages: Sequence[Message], turn: RecordedTurn) -> list[int]:
        """Return what is printed for the reply after `messages`."""
        conversation = [*messages, turn.reply]
        if self._template is None:
            prompt = self._renderer.render(messages, turn.tools)
            printed = self._renderer.render(conversation, turn.tools, cue=False)
            return printed[common(_array(printed), _array(prompt)) :]
        before = self._template.text(messages, turn.tools)
        after = self._template.text(conversation, turn.tools, prompt=False)
        text = after[_shared(before, after) :]
        if before.rstrip().endswith(_THINK) and _END_OF_THINKING not in text:
            text = f"{turn.reply.get('reasoning_content') or ''}\n{_END_OF_THINKING}\n\n{text}"
        return self._template.ids(text)

    def _encode(self, template: ChatTemplate, text: str) -> Ids:
        """Return the ids of `text`. Tokenizers encode the text between two added tokens by itself, so each
        such text is encoded once. Whether that gives the same ids is checked on texts that are not long, each
        twice the size of the one before."""
        if self._marks is None:
            return _array(template.ids(text))
        parts = self._marks.split(text)
        for part in set(parts).difference(self._segments):
            self._segments[part] = _array(template.ids(part))
        ids: Ids = np.concatenate([self._segments[part] for part in parts])
        if 2 * self._checked < len(text) <= _CHECKED or not self._checked:
            self._checked = len(text)
            whole = _array(template.ids(text))
            if not np.array_equal(ids, whole):
                self._marks = None
                return whole
        return ids


def common(one: Ids, other: Ids) -> int:
    """Return the length of the common beginning."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size


def _array(ids: Sequence[int]) -> Ids:
    return np.array(ids, dtype=np.int32)


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts, by bisection."""
    size = min(len(one), len(other))
    return bisect_left(range(size), True, key=lambda at: one[: at + 1] != other[: at + 1])
