"""measure: what becomes of a recorded conversation with our prompts, and with prompts rendered anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from swe_core.api.chain import Chain
from swe_core.api.engine import ForkCause, Sampled
from swe_core.api.messages import Message, same_arguments
from swe_core.drift.anew import Anew, Ids, common
from swe_core.drift.lost import lost
from swe_core.drift.recorded import RecordedConversation, RecordedTurn
from swe_core.errors import RequestRefused, sentence
from swe_core.tokens.chains import ChainBuilder, Step
from swe_core.tokens.conversation import Conversation, Prompt
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_core.tokens.template_renderer import ChatTemplate, TemplateRenderer

_SHOWN = 80
"""Characters of each side of a difference."""
_WINDOW, _BEFORE = 256, 32
"""Ids that are decoded to see a difference, and as many before it that both sides share."""
_BY_RENDERING: frozenset[ForkCause] = frozenset({"template", "retokenised", "truncated"})
_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Fork:
    """A turn that begins a row, though not a conversation."""

    turn: int
    cause: ForkCause


@dataclass(frozen=True, slots=True)
class Difference:
    """Where ids that were received and sampled are rendered otherwise.

    Args:
        turn: The turn whose prompt differs.
        message: Index, in its request, of the message with the difference.
        role: Role of that message.
        before: The text of the ids up to the turn before, from the difference on.
        after: The same place of the prompt.
    """

    turn: int
    message: int
    role: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Side:
    """What one way to make prompts gives.

    Args:
        rows: Training rows.
        extended: Turns whose prompts begin with all ids of a row.
        forks: Turns that begin a row otherwise than by starting a conversation.
        broken: Turns that continue a turn, but whose prompts do not begin with its ids.
        repeated: Context tokens of the forks: their prompts, which hold again what another row holds.
        lost: Sampled tokens that are trained in no row as they were sampled.
    """

    rows: int = 0
    extended: int = 0
    forks: Sequence[Fork] = ()
    broken: int = 0
    repeated: int = 0
    lost: int = 0

    @property
    def causes(self) -> dict[ForkCause, int]:
        """Return cause → forks."""
        return dict(Counter(fork.cause for fork in self.forks))


@dataclass(frozen=True, slots=True)
class Drift:
    """What becomes of one conversation, or of many.

    Args:
        name: That of the conversation.
        turns: Turns that were replayed.
        dropped: As many of them as the record drops: they are context, but in no row.
        sampled: Tokens of the replies of the others.
        exact: Turns whose sampled ids are in the record. Those of the others are what the format prints.
        ours: With prompts that extend the sampled ids where the format allows it.
        anew: With prompts that are rendered anew from the messages; its `lost` are tokens that the rendering
            of each row's last conversation does not hold.
        skipped: Turns that the chat template refuses.
        refused: What it says about the first of them.
        difference: The first place at which rendering anew breaks a row.
    """

    name: str
    turns: int
    dropped: int
    sampled: int
    exact: int
    ours: Side
    anew: Side
    skipped: int = 0
    refused: str | None = None
    difference: Difference | None = None


def measure(
    recorded: RecordedConversation, renderer: Renderer, template: ChatTemplate | None = None
) -> Drift:
    """Replay a conversation.

    Args:
        renderer: Makes our prompts.
        template: The model's own chat template, which renders conversations anew; None takes `renderer`.
    """
    replay = Replay(renderer, template)
    skipped, refused = 0, None
    for index, turn in enumerate(recorded.turns):
        try:
            replay.add(index, turn)
        except RequestRefused as error:
            skipped += 1
            refused = refused or f"turn {index}: {sentence(error)}"
    chains = replay.chains.build()
    try:
        gone = replay.lost(chains)
    except RequestRefused as error:
        gone, refused = 0, refused or sentence(error)
    steps = [turn for turn in replay.turns.values() if turn.dropped is None]
    sampled = sum(len(turn.completion) for turn in steps)
    trained = sum(int(chain.completion_mask.sum()) for chain in chains)
    return Drift(
        name=recorded.name,
        turns=len(replay.turns),
        dropped=len(replay.turns) - len(steps),
        sampled=sampled,
        exact=replay.exact,
        ours=replay.ours.side(sampled - trained),
        anew=replay.anew.side(gone),
        skipped=skipped,
        refused=refused,
        difference=replay.difference,
    )


def total(found: Sequence[Drift]) -> Drift:
    """Return the sum of many conversations; its forks name turns of different ones."""
    return Drift(
        name="total",
        turns=sum(one.turns for one in found),
        dropped=sum(one.dropped for one in found),
        sampled=sum(one.sampled for one in found),
        exact=sum(one.exact for one in found),
        ours=_sum([one.ours for one in found]),
        anew=_sum([one.anew for one in found]),
        skipped=sum(one.skipped for one in found),
    )


def _sum(sides: Sequence[Side]) -> Side:
    return Side(
        rows=sum(side.rows for side in sides),
        extended=sum(side.extended for side in sides),
        forks=[fork for side in sides for fork in side.forks],
        broken=sum(side.broken for side in sides),
        repeated=sum(side.repeated for side in sides),
        lost=sum(side.lost for side in sides),
    )


@dataclass(slots=True)
class _Tally:
    """Counts what one way to make prompts gives."""

    rows: int = 0
    extended: int = 0
    forks: list[Fork] = field(default_factory=list)
    broken: int = 0
    repeated: int = 0

    def add(self, turn: int, prompt: int, cause: ForkCause | None, *, broken: bool) -> None:
        """Count a turn.

        Args:
            prompt: Number of its prompt's ids.
            cause: Why it begins a row; None where it extends one.
        """
        self.broken += broken
        self.rows += cause is not None
        self.extended += cause is None
        if cause is not None and cause != "start":
            self.forks.append(Fork(turn, cause))
            self.repeated += prompt

    def side(self, gone: int) -> Side:
        return Side(self.rows, self.extended, self.forks, self.broken, self.repeated, gone)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn that was replayed.

    Args:
        base: Index of the turn that its history continues.
        prompt: Its prompt, rendered anew.
    """

    recorded: RecordedTurn
    base: int | None
    prompt: Ids
    completion: Ids

    @property
    def dropped(self) -> str | None:
        return self.recorded.dropped

    @property
    def ids(self) -> Ids:
        return np.concatenate([self.prompt, self.completion])


class Replay:
    """One conversation, made into rows in both ways.

    Attributes:
        turns: The turns so far, by index.
        chains: Their rows with our prompts.
    """

    def __init__(self, renderer: Renderer, template: ChatTemplate | None) -> None:
        self.turns: dict[int, _Turn] = {}
        self.chains = ChainBuilder()
        self.ours, self.anew = _Tally(), _Tally()
        self.exact = 0
        self.difference: Difference | None = None
        self._renderer = renderer
        self._whole = Anew(renderer, template)
        if template is not None and isinstance(renderer, TemplateRenderer) and not renderer.proven:
            renderer = _Unproven(renderer, self._whole)
        self._conversation = Conversation(renderer)
        self._rows_anew = ChainBuilder()
        self._index: dict[Sampled, int] = {}
        self._ends = cache(lambda id_: renderer.text([id_]).endswith("\n") or id_ in renderer.marks)

    def add(self, index: int, turn: RecordedTurn) -> None:
        """Replay a turn.

        Raises:
            RequestRefused: The chat template refuses its request or its reply.
        """
        place = self._conversation.find(turn.messages, turn.tools)
        prompt = self._conversation.extend(place) or self._conversation.render(place)
        usual = self._whole.render(turn.messages, turn.tools)
        completion = self._completion(turn, prompt)
        base = None if place.continues is None else self._index[place.continues]
        sampled = _sampled(prompt, completion)
        self._conversation.add(prompt, sampled, turn.reply)
        self._index[sampled] = index
        this = self.turns[index] = _Turn(turn, base, usual, sampled.completion_ids)
        extends = None if prompt.extends is None else self._index[prompt.extends]
        fork = self.chains.add(_step(index, extends, sampled.prompt_ids, sampled, prompt.cause, turn.dropped))
        if turn.dropped is None:
            broken = base is not None and prompt.cause in _BY_RENDERING
            self.ours.add(index, prompt.length, fork, broken=broken)
        self._add_anew(index, this, sampled, prompt.cause)

    def lost(self, rows: Sequence[Chain]) -> int:
        """Return the sampled tokens that the last conversations of `rows`, our own, do not hold anew.

        Raises:
            RequestRefused: The chat template refuses one of them.
        """
        found = 0
        for chain in rows:
            last = self.turns[chain.turns[-1]].recorded
            whole = self._whole.render([*last.messages, last.reply], last.tools, cue=False)
            found += lost(chain.input_ids, chain.completion_mask, whole, self._ends)
        return found

    def _add_anew(self, index: int, this: _Turn, sampled: Sampled, cause: ForkCause | None) -> None:
        """Count the turn with its prompt rendered anew; `cause` is why it forks with ours."""
        base, broken = this.base, False
        if base is not None:
            before = self.turns[base].ids
            same = common(before, this.prompt)
            broken = same < len(before)
            if not broken:
                cause = None
            elif cause != "rewritten":
                cause = self._cause(before, this.prompt, same)
                if self.difference is None and this.dropped is None:
                    self.difference = self._difference(index, before, same)
            extends = None if broken else base
        else:
            extends = None
        fork = self._rows_anew.add(_step(index, extends, _NONE, _EMPTY, cause, this.dropped))
        if this.dropped is None:
            self.anew.add(index, len(this.prompt), fork, broken=broken and cause in _BY_RENDERING)

    def _completion(self, turn: RecordedTurn, prompt: Prompt) -> Sequence[int]:
        """Return the sampled ids of a turn where the record has them and they are this tokenizer's, else what
        the format prints."""
        if turn.sampled:
            parsed = self._renderer.parse(turn.sampled, prompt.tail, turn.tools)
            if _says(parsed, turn.reply):
                self.exact += 1
                return turn.sampled
        return self._whole.reply(turn)

    def _cause(self, before: Ids, prompt: Ids, same: int) -> ForkCause:
        """Return why `prompt` does not begin with `before`, as `Conversation` does."""
        if before[-1] not in self._renderer.stop_ids:
            return "truncated"
        start = max(0, same - _BEFORE)
        for end in (same + _WINDOW, None):  # most differences show at once
            one, other = (self._renderer.text(ids[start:end].tolist()) for ids in (before, prompt))
            shorter = min(len(one), len(other)) - (end is not None)  # the last character may be incomplete
            if one[:shorter] != other[:shorter]:
                return "template"
        return "retokenised" if other.startswith(one) else "template"

    def _difference(self, turn: int, before: Ids, same: int) -> Difference:
        """Return the difference between the ids of a turn's base and its prompt. All prompts up to the base
        begin with the ids before them, since this is the first one that does not."""
        path = [self.turns[turn].base]
        while (earlier := path[-1]) is not None:
            path.append(self.turns[earlier].base)
        message = 0
        for index in reversed(path):
            if index is None:
                continue
            one = self.turns[index]
            if same < len(one.prompt):
                message = self._in_request(one, message, same)
                break
            message = len(one.recorded.messages)  # in its reply, or in what follows
            if same < len(one.prompt) + len(one.completion):
                break
            message += 1
        texts = [
            self._renderer.text(ids[same : same + _WINDOW].tolist())[:_SHOWN]
            for ids in (before, self.turns[turn].prompt)
        ]
        messages = self.turns[turn].recorded.messages
        return Difference(turn, message, str(messages[message]["role"]), *texts)

    def _in_request(self, turn: _Turn, message: int, same: int) -> int:
        """Return the index of a message in which a prompt differs: that of the reply, if it is the generation
        prompt, else `message`."""
        asked = turn.recorded
        try:
            bare = self._whole.render(asked.messages, asked.tools, cue=False)
        except RequestRefused:
            return message
        return len(asked.messages) if same >= common(bare, turn.prompt) else message


class _Unproven(Renderer):
    """A chat template that never extends: its whole prompts are those that are rendered anew."""

    how = "full"

    def __init__(self, renderer: Renderer, anew: Anew) -> None:
        self.stop_ids, self.marks = renderer.stop_ids, renderer.marks
        self._renderer = renderer
        self._anew = anew

    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> list[int]:
        ids: list[int] = self._anew.render(messages, tools, cue=cue).tolist()
        return ids

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> None:
        return None

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        return self._renderer.parse(completion, tail, tools, ended=ended)

    def text(self, ids: Sequence[int]) -> str:
        return self._renderer.text(ids)


def _says(parsed: Parsed, reply: Message) -> bool:
    """Return whether ids that were parsed say what the agent received. It may have received less: text up to
    a stop, or the first call."""
    calls = [call["function"] for call in reply.get("tool_calls") or ()]
    found = parsed.calls[: len(calls)]
    wanted = [(call["name"], same_arguments(call["arguments"])) for call in calls]
    if [(name, same_arguments(arguments)) for name, arguments, _ in found] != wanted:
        return False
    return parsed.content.strip().startswith(reply["content"].strip())


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


def _step(
    index: int, base: int | None, prompt: Ids, sampled: Sampled, cause: ForkCause | None, dropped: str | None
) -> Step:
    return Step(
        index,
        base,
        prompt,
        sampled.completion_ids,
        sampled.logprobs,
        sampled.versions,
        "full",
        cause,
        dropped,
    )


_EMPTY = Sampled(None, _NONE, _NONE, np.empty(0, np.float32), _NONE)
"""Stands for the tokens of a turn where only the order of turns in rows counts."""
