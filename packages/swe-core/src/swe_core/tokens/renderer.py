"""Renderer: messages to token ids, new messages to the ids after a sampled reply, and replies back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swe_core.api.engine import Rendered
from swe_core.api.messages import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAIL = 256
"""Ids of the prompt's end that `extend` and `parse` get: enough for every generation prompt."""

THINKING = "thinking"
"""Marks earlier replies as sampled: with thinking off, its empty markers. They stay in the prompt after a new
user message, where the model's own chat template drops them."""

Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a completion's ids.

    Args:
        content: The text, with tool-call blocks that have no name.
        reasoning: The thinking; None without any.
        calls: The tool calls: name, arguments as text (as sampled where they are no JSON), and the format's
            id, None where it has none.
    """

    content: str
    reasoning: str | None = None
    calls: tuple[tuple[str, str, str | None], ...] = ()


class Renderer(ABC):
    """One model's chat format. Stateless: shared by all rollouts, and thread-safe."""

    name: str
    """Name in reports, such as "renderers/qwen3" or "template"."""
    tokenizer: PreTrainedTokenizerBase
    """The model's tokenizer."""
    how: Rendered
    """How prompts are made where `extend` gives ids; "full" where it never does."""
    stop_ids: frozenset[int]
    """Ids that end a reply."""
    streams: bool
    """Whether the text that `parse` finds in an unfinished completion only grows with more ids."""
    marks: frozenset[int]
    """Ids that may change the kind of the ids after them: reasoning, content, part of a call."""
    splits: bool
    """Whether ids between marks can be decoded in parts, wherever no part ends inside a character."""
    differs: tuple[str, ...] = ()
    """Where prompts differ from the model's chat template: names of `probe_messages.PROBES`, `THINKING`."""
    finds_calls: bool
    """Whether `parse` recognises tool calls; else every reply is text."""

    @abstractmethod
    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> list[int]:
        """Return the whole conversation as ids.

        Args:
            cue: Whether to end with the generation prompt.

        Raises:
            RequestRefused: The template refuses the conversation; the sentence quotes the template.
        """

    @abstractmethod
    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        """Return the ids that follow a prompt and its sampled completion when `messages` come next.

        They reach up to and including the next generation prompt; after a cut completion they begin with what
        closes it. None where the model's format cannot be proven to give them, so that the prompt must be
        rendered again.

        Args:
            tail: The last `TAIL` ids of the prompt, or all of a shorter one.
            messages: The new messages, none of them the assistant's.
        """

    @abstractmethod
    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        """Return the content of a completion's ids. Never raises on odd ids.

        Args:
            tail: The last `TAIL` ids of the prompt, or all of a shorter one.
            ended: False while more ids may follow. White space and unfinished characters at the end, and
                blocks that may become tool calls, are left out then.
        """

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str:
        """Return `ids` as text, special tokens included."""
