"""measure: what becomes of a recorded conversation with our prompts, and with prompts rendered anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swe_core.api.engine import Sampled
from swe_core.drift.anew import Anew, Ids, common
from swe_core.drift.recorded import RecordedConversation
from swe_core.errors import RequestRefused, sentence
from swe_core.tokens.conversation import Conversation, Prompt
from swe_core.tokens.renderer import Renderer
from swe_core.tokens.template_renderer import ChatTemplate

_SHOWN = 80
"""Characters of each side of a difference."""


@dataclass(frozen=True, slots=True)
class Break:
    """A turn that does not continue the row of the turn before it.

    Args:
        turn: Its index.
        cause: Why, as in the ledger; "rendered" where only rendering anew breaks it.
        before: The row before, from the first difference on, as text.
        after: The same place of the new prompt.
    """

    turn: int
    cause: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """What one way to make prompts does.

    Args:
        rows: Training rows, where each break begins one.
        breaks: Turns that continue no row, the starts of conversations left out.
        repeated: Context tokens of rows that begin by a break.
        lost: Sampled tokens that the last prompt of a conversation does not hold as they were sampled. Who
            trains on one row a conversation trains other tokens in their place.
    """

    rows: int
    breaks: Sequence[Break]
    repeated: int
    lost: int


@dataclass(frozen=True, slots=True)
class Drift:
    """What becomes of one conversation.

    Args:
        turns: Turns that were replayed.
        sampled: Tokens of their replies.
        exact: Turns whose sampled ids are in the record. Those of the others are what the format prints.
        ours: With prompts that extend the sampled ids where the format allows it.
        rendered: With prompts that are rendered anew from the messages.
        refused: Why the rest could not be replayed; None where all was.
    """

    name: str
    turns: int
    sampled: int
    exact: int
    ours: Side
    rendered: Side
    refused: str | None = None

    @property
    def forks(self) -> dict[str, int]:
        """Return cause → turns that leave the row with our prompts."""
        return dict(Counter(one.cause for one in self.ours.breaks))


@dataclass(slots=True)
class _Row:
    """The ids up to the end of a turn, and where the replies in them are.

    Args:
        replies: Turn → start and end of its reply.
    """

    ids: Ids
    replies: dict[int, tuple[int, int]]


class _Tally:
    """Counts the rows of one way to make prompts."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._rows: dict[Sampled, _Row] = {}
        self._sizes: dict[int, int] = {}
        self._lost: set[int] = set()
        self._extended: set[Sampled | None] = set()
        self._breaks: list[Break] = []
        self._count = self._repeated = 0

    def add(self, turn: int, before: Sampled | None, this: Sampled, prompt: Ids, cause: str) -> None:
        """Count a turn.

        Args:
            before: The turn that its history continues; None for the start of a conversation.
            this: The turn itself, with its reply.
            cause: Why its prompt begins a row, if it does; "start" where it begins a conversation.
        """
        earlier = self._rows[before] if before is not None else _Row(prompt[:0], {})
        same = common(earlier.ids, prompt)
        kept = {one: span for one, span in earlier.replies.items() if span[1] <= same}
        self._lost |= earlier.replies.keys() - kept.keys()
        if before in self._extended and same == len(earlier.ids):
            cause = "branch"
        elif before is not None and same == len(earlier.ids):
            cause = ""
            self._extended.add(before)
        if cause:
            self._count += 1
        if cause and cause != "start":
            self._repeated += len(prompt)
            shown = [self._text(ids[same:]) for ids in (earlier.ids, prompt)]
            self._breaks.append(Break(turn, cause, *shown))
        self._sizes[turn] = len(this.completion_ids)
        ids = np.concatenate([prompt, this.completion_ids])
        self._rows[this] = _Row(ids, {**kept, turn: (len(prompt), len(ids))})

    def side(self) -> Side:
        """Return the result."""
        lost = sum(self._sizes[turn] for turn in self._lost)
        return Side(self._count, self._breaks, self._repeated, lost)

    def _text(self, ids: Ids) -> str:
        return self._renderer.text(ids[:_SHOWN].tolist())[:_SHOWN]


def measure(recorded: RecordedConversation, ours: Renderer, template: ChatTemplate | None = None) -> Drift:
    """Replay a conversation.

    Args:
        ours: Makes our prompts.
        template: The model's own chat template, which renders conversations anew; None takes `ours` for it.
    """
    conversation, anew = Conversation(ours), Anew(ours, template)
    extended, rendered = _Tally(ours), _Tally(ours)
    whole: dict[Sampled, Ids] = {}
    sampled_tokens = exact = done = 0
    refused: str | None = None
    for index, turn in enumerate(recorded.turns):
        try:
            place = conversation.find(turn.messages, turn.tools)
            prompt = conversation.extend(place) or conversation.render(place)
            usual = anew.render(turn.messages, turn.tools)
            completion = anew.reply(turn, usual) if turn.sampled is None else list(turn.sampled)
        except RequestRefused as error:
            refused = f"turn {index}: {sentence(error)}"
            break
        ids = prompt.new_ids
        if prompt.extends is not None:
            ids = np.concatenate([whole[prompt.extends], ids])
        this = _sampled(prompt, completion)
        extended.add(index, place.continues, this, ids, str(prompt.cause))
        cause = "rendered" if place.continues is not None else str(prompt.cause)
        rendered.add(index, place.continues, this, usual, cause)
        conversation.add(prompt, this, turn.reply)
        whole[this] = np.concatenate([ids, this.completion_ids])
        sampled_tokens += len(completion)
        exact += turn.sampled is not None
        done += 1
    return Drift(recorded.name, done, sampled_tokens, exact, extended.side(), rendered.side(), refused)


def _sampled(prompt: Prompt, completion: Sequence[int]) -> Sampled:
    count = len(completion)
    return Sampled(
        extends=prompt.extends,
        prompt_ids=prompt.new_ids,
        completion_ids=np.array(completion, dtype=np.int32),
        logprobs=np.zeros(count, dtype=np.float32),
        versions=np.zeros(count, dtype=np.int32),
        rendered=prompt.rendered,
        cause=prompt.cause,
    )
