"""Chains: the turns of a rollout as rows of token ids, each sampled id in exactly one of them.

A turn extends a chain only if its prompt begins with ALL ids of that chain; otherwise it starts a new one
with its whole prompt as context. This module neither tokenises nor compares prompts: `Step.base` says what a
prompt begins with, by construction or because `swe_core.tokens.token_log` compared the ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from swe_core.api.chain import Chain
from swe_core.api.engine import ForkCause, Rendered
from swe_core.api.records import Turn, TurnTokens
from swe_core.errors import LedgerError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The exact tokens of one turn: `swe_core.api.records.TurnTokens` as arrays.

    Args:
        base: Index of the turn whose ids (prompt and completion) this prompt begins with.
        prompt: The prompt's ids after those of `base`, int32 [P]; all of them where it is None.
        completion: The sampled ids, int32 [C].
        logprobs: Of each sampled id, float32 [C]; NaN where unknown.
        versions: Policy version that sampled each id, int32 [C].
        cause: Why it extends no turn; None where `base` is set.
        dropped: Why no id of it is trained; None where they are.
        summary: Whether it is the summary of a compaction.

    Raises:
        LedgerError: There is not one logprob and one version for each sampled id.
    """

    index: int
    base: int | None
    prompt: NDArray[np.int32]
    completion: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    rendered: Rendered = "full"
    cause: ForkCause | None = None
    dropped: str | None = None
    summary: bool = False

    def __post_init__(self) -> None:
        sampled, logprobs, versions = len(self.completion), len(self.logprobs), len(self.versions)
        if not sampled == logprobs == versions:
            raise LedgerError(
                f"turn {self.index} has {sampled} sampled ids, {logprobs} logprobs and {versions} versions; "
                "an engine must give one of each for every id"
            )

    @property
    def trainable(self) -> NDArray[np.bool_]:
        """Return which sampled ids have a logprob to train on, [C]."""
        return np.isfinite(self.logprobs)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a chain is made of.

    Args:
        cause: As in `Chain`.
        steps: The turns whose new ids, prompt and then completion, follow each other, each with whether the
            chain trains it. The others are context: dropped turns, and those that another chain trains.
    """

    cause: ForkCause
    steps: tuple[tuple[Step, bool], ...]


@dataclass(slots=True)
class _Row:
    """A chain under construction: the turns whose new ids follow each other, and which of them it trains."""

    cause: ForkCause
    parts: list[tuple[Step, bool]] = field(default_factory=list)

    def build(self) -> Chain:
        length = sum(len(step.prompt) + len(step.completion) for step, _ in self.parts)
        input_ids = np.empty(length, np.int32)
        mask = np.zeros(length, np.bool_)
        logprobs = np.zeros(length, np.float32)
        versions = np.full(length, -1, np.int32)
        at = 0
        for step, trained in self.parts:
            start = at + len(step.prompt)
            end = start + len(step.completion)
            input_ids[at:start] = step.prompt
            input_ids[start:end] = step.completion
            if trained:
                mask[start:end] = known = step.trainable
                logprobs[start:end] = np.where(known, step.logprobs, np.float32(0))
                versions[start:end] = np.where(known, step.versions, np.int32(-1))
            at = end
        turns = tuple(step.index for step, trained in self.parts if trained)
        return Chain(turns, input_ids, mask, logprobs, versions, self.cause)


class ChainBuilder:
    """Put turns into chains, in the order in which the turns ended."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}
        self._rows: list[_Row] = []
        self._tips: dict[int, _Row] = {}
        self._begun: set[int] = set()

    def add(self, step: Step) -> ForkCause | None:
        """Place `step`. A dropped turn is in no chain, but is context of the turns that continue it.

        Returns:
            Why it started a chain; None where it extends one or is dropped.

        Raises:
            LedgerError: Its base was not added before it, or its index was.
        """
        if step.index in self._steps:
            raise LedgerError(f"turn {step.index} is there twice; each turn has an index of its own")
        if step.base is not None and step.base not in self._steps:
            raise LedgerError(f"turn {step.index} continues turn {step.base}, which must come before it")
        self._steps[step.index] = step
        if step.dropped is not None:
            return None
        # Dropped turns between a chain and this one belong to its prompt, which still begins with the chain.
        context: list[Step] = []
        past = self._base(step)
        while past is not None and past.dropped is not None:
            context.append(past)
            past = self._base(past)
        row = None if past is None else self._tips.pop(past.index, None)
        cause: ForkCause | None = None
        if row is None:
            while past is not None:
                context.append(past)
                past = self._base(past)
            first = context[-1] if context else step
            cause = "branch" if first.index in self._begun else first.cause or "unknown"
            self._begun.add(first.index)
            row = _Row(cause)
            self._rows.append(row)
        row.parts += [(past, False) for past in reversed(context)]
        row.parts.append((step, True))
        self._tips[step.index] = row
        return cause

    def _base(self, step: Step) -> Step | None:
        return None if step.base is None else self._steps[step.base]

    def build(self) -> list[Chain]:
        """Return the chains so far, in the order in which they began."""
        return [row.build() for row in self._rows]

    def parts(self) -> list[Parts]:
        """Return what each chain so far is made of, in the order of `build`."""
        return [Parts(row.cause, tuple(row.parts)) for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)


def build_chains(steps: Iterable[Step]) -> list[Chain]:
    """Return the chains of a rollout's turns, in linear time.

    Args:
        steps: In the order in which the turns ended, each after its base.

    Raises:
        LedgerError: A base is missing, or a turn occurs twice.
    """
    builder = ChainBuilder()
    for step in steps:
        builder.add(step)
    return builder.build()


def step_of(index: int, tokens: TurnTokens, *, summary: bool = False) -> Step:
    """Return the recorded tokens of turn `index` as arrays.

    Raises:
        LedgerError: There is not one logprob and one version for each sampled id.
    """
    versions = np.array(tokens.versions, np.int32).reshape(-1, 2)
    return Step(
        index,
        tokens.base,
        np.array(tokens.prompt, np.int32),
        np.array(tokens.completion, np.int32),
        np.array(tokens.logprobs, np.float32),  # null becomes NaN
        np.repeat(versions[:, 0], versions[:, 1]),
        tokens.rendered,
        tokens.cause,
        tokens.dropped,
        summary,
    )


def chains_of(turns: Iterable[Turn]) -> list[Chain]:
    """Return the chains of recorded turns (`RunDirectory.turns`), the same as during the rollout.

    Turns without tokens, such as those of an engine that does not own them, are ignored.

    Raises:
        LedgerError: The records do not fit together.
    """
    return build_chains(step_of(turn.index, turn.tokens) for turn in turns if turn.tokens is not None)
