"""Renderer: messages to token ids, new messages to the ids that follow a sampled reply, and replies back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_core.api.engine import Rendered
from swe_core.api.messages import Message

TAIL = 256
"""Ids of the end of a prompt that `extend` and `parse` are given: enough to hold every generation prompt."""

THINKING = "thinking"
"""Of earlier replies, as it was sampled: with thinking off, its empty markers. It stays in the prompt after a
new user message, where the model's own chat template drops it."""

Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a completion's ids say.

    Args:
        content: The text; blocks that were meant as tool calls and have no name are left in it.
        reasoning: The thinking; None where there is none.
        calls: The tool calls: name, arguments as text (as sampled where they are no JSON), and the id that
            the format carries, None where it carries none.
    """

    content: str
    reasoning: str | None = None
    calls: tuple[tuple[str, str, str | None], ...] = ()


class Renderer(ABC):
    """One model's chat format. Stateless: shared by all rollouts, and safe to call from threads."""

    name: str
    """For reports, such as "renderers/qwen3" or "template"."""
    how: Rendered
    """How prompts are made where `extend` gives ids; "full" where it never does."""
    stop_ids: frozenset[int]
    """Ids that end a reply."""
    streams: bool
    """Whether the text that `parse` finds in an unfinished completion only ever grows: more ids never change
    it or take it back."""
    marks: frozenset[int]
    """Ids that may change what the ids after them are: reasoning, content, part of a call."""
    splits: bool
    """Whether ids between marks can be decoded in parts: the texts of the parts are the text of the whole,
    wherever no part ends inside a character."""
    differs: tuple[str, ...] = ()
    """Where its prompts are not those of the model's own chat template: names of `probes.PROBES`, and
    `THINKING`."""
    finds_calls: bool
    """Whether `parse` knows what a tool call looks like; else every reply is text."""

    @abstractmethod
    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """The whole conversation as ids, the generation prompt included.

        Raises:
            RequestRefused: The template refuses the conversation; the sentence has the template's words.
        """

    @abstractmethod
    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        """The ids that follow a prompt and its sampled completion when `messages` come next, up to and
        including the next generation prompt; where the completion was cut, they begin with what closes it.
        None where that cannot be proven to be what the model's format says, so that the prompt must be
        rendered afresh.

        Args:
            tail: The last `TAIL` ids of the prompt, or all of a shorter one.
            messages: The new messages, none of them the assistant's.
        """

    @abstractmethod
    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        """What the ids of a completion say. Never raises on odd ids.

        Args:
            tail: The last `TAIL` ids of the prompt, or all of a shorter one.
            ended: False while more ids may follow. What they could still change is then left out: white
                space and unfinished characters at the end, and blocks that may become tool calls.
        """

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str:
        """`ids` as text, special tokens included."""
