"""TokenLog: the exact tokens of one rollout's turns, for records, rows and the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import orjson
from numpy.typing import NDArray

from swe_core.api.chain import Chain
from swe_core.api.engine import ForkCause, Sampled
from swe_core.api.records import FOREIGN, UNDELIVERED, Ledger, TurnTokens
from swe_core.errors import LedgerError
from swe_core.tokens.chains import ChainBuilder, Step
from swe_core.tokens.foreign import Start, foreign_turns
from swe_core.tokens.ledger import prove

Ids = NDArray[np.int32]


class TokenLog:
    """Collect one rollout's tokens. Not thread-safe: each gate has its own."""

    def __init__(self) -> None:
        self._sampled = 0
        self._steps: list[Step] = []
        self._index: dict[Sampled, int] = {}
        self._chains = ChainBuilder()
        self._seen = _Seen()

    def add(
        self, index: int, sampled: Sampled, dropped: str | None = None, *, summary: bool = False
    ) -> TurnTokens:
        """Add a turn's tokens, each turn once and after the turn that it extends.

        Args:
            sampled: The tokens. With the cause "unknown" the engine gave the whole prompt, and comparing ids
                finds its beginning; no turn may name such a turn as its base.
            dropped: Why the reply was not delivered, such as "aborted": none of it is trained. None where it
                was delivered; then the engine's own reason counts, if there is one (`Sampled.dropped`).
            summary: Whether it is the summary of a compaction.

        Returns:
            The record: only the ids after those of the base.

        Raises:
            LedgerError: The turn does not fit the earlier ones, or lacks logprobs or versions. Its tokens are
                then missing from every row, and `ledger` says so.
        """
        self._sampled += len(sampled.completion_ids)  # first: tokens of a refused turn are counted as missing
        base, prompt, cause = self._place(index, sampled)
        step = Step(
            index,
            base,
            prompt,
            np.asarray(sampled.completion_ids, np.int32),
            np.asarray(sampled.logprobs, np.float32),
            np.asarray(sampled.versions, np.int32),
            sampled.rendered,
            cause,
            dropped or sampled.dropped,
            summary,
        )
        fork = self._chains.add(step)
        self._steps.append(step)
        if sampled.cause == "unknown":
            if dropped is None:
                self._seen.add(step)
        else:
            self._index[sampled] = index
        return _record(step, fork)

    def drop_undelivered(self, indices: Collection[int]) -> list[int]:
        """Drop those of these turns that no other turn continues; a continued reply was delivered.

        Call this after the last `add`.

        Args:
            indices: Turns without another reason to drop them whose reply was not delivered completely.

        Returns:
            The indices of the dropped turns.
        """
        continued = {step.base for step in self._steps}
        lost = [index for index in indices if index not in continued]
        self._drop(lost, UNDELIVERED)
        return lost

    def drop_foreign(self, starts: Mapping[int, Start], late: Collection[int] = ()) -> list[int]:
        """Drop the turns that are not the agent's own. Call this after the last `add`.

        Args:
            starts: As in `swe_core.tokens.foreign.foreign_turns`.
            late: As there.

        Returns:
            The indices of the turns that are trained no more.
        """
        foreign = foreign_turns(self._steps, starts, late)
        lost = [step.index for step in self._steps if step.index in foreign and step.dropped is None]
        self._drop(lost, FOREIGN)
        return lost

    def _drop(self, lost: Collection[int], reason: str) -> None:
        if not lost:
            return
        gone = frozenset(lost)
        self._chains = ChainBuilder()
        self._steps = [replace(step, dropped=reason) if step.index in gone else step for step in self._steps]
        for step in self._steps:
            self._chains.add(step)

    def ledger(self, no_reward: str | None = None) -> Ledger | None:
        """Return the ledger of all tokens; None where no turn had any.

        Args:
            no_reward: As in `swe_core.tokens.ledger.prove`.

        Raises:
            LedgerError: Some tokens are not accounted for.
        """
        if not self._steps and not self._sampled:
            return None
        return prove(self._sampled, self._steps, self.chains(), no_reward)

    def chains(self) -> list[Chain]:
        """Return the training rows of the turns so far, in the order in which they began."""
        return self._chains.build()

    def _place(self, index: int, sampled: Sampled) -> tuple[int | None, Ids, ForkCause | None]:
        """Return the turn that the prompt begins with, the ids after it, and the cause if there is none."""
        prompt = np.asarray(sampled.prompt_ids, np.int32)
        if sampled.extends is not None:
            base = self._index.get(sampled.extends)
            if base is None:
                raise LedgerError(
                    f"turn {index} extends a turn that was never recorded, so its tokens would be lost; "
                    "the engine must extend only turns that it completed in this rollout"
                )
            return base, prompt, None
        if sampled.cause != "unknown":
            return None, prompt, sampled.cause
        found = self._seen.find(prompt)
        if found is None:
            return None, prompt, "unknown" if len(self._chains) else "start"
        base, length = found
        return base, prompt[length:].copy(), None  # a view would keep the whole prompt in memory


@dataclass(slots=True)
class _Thread:
    """A chain's ids as bytes, which grow and are compared in place, and its last turn."""

    ids: bytearray
    turn: int = -1

    def begins(self, prompt: memoryview, size: int) -> bool:
        """Return whether `prompt` begins with the first `size` bytes.

        The last bytes are compared first, since different prompts share a long beginning.
        """
        end = max(0, size - 256)
        if size > len(prompt):
            return False
        return self.ids.startswith(prompt[end:size], end) and self.ids.startswith(prompt[:end])


class _Seen:
    """The ids of turns with whole prompts, to find the turn that a prompt begins with."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._ends: dict[int, tuple[int, _Thread]] = {}

    def find(self, prompt: Ids) -> tuple[int, int] | None:
        """Find the turn whose ids `prompt` begins with, and their number.

        The last turn of the longest chain is preferred; else the prompt branches from the longest other
        turn.
        """
        data = np.ascontiguousarray(prompt).view(np.uint8).data
        for thread in sorted(self._threads, key=lambda thread: len(thread.ids), reverse=True):
            if thread.begins(data, len(thread.ids)):
                return thread.turn, len(thread.ids) // prompt.itemsize
        longest = sorted(self._ends.items(), key=lambda end: end[1][0], reverse=True)
        for turn, (size, thread) in longest:
            if thread.begins(data, size):
                return turn, size // prompt.itemsize
        return None

    def add(self, step: Step) -> None:
        """Add the ids of `step`, which continues a chain, branches from one or begins one."""
        size, thread = (0, None) if step.base is None else self._ends[step.base]
        if thread is None or thread.turn != step.base:
            thread = _Thread(thread.ids[:size] if thread else bytearray())
            self._threads.append(thread)
        thread.ids += step.prompt.tobytes() + step.completion.tobytes()
        thread.turn = step.index
        self._ends[step.index] = len(thread.ids), thread


def _record(step: Step, fork: ForkCause | None) -> TurnTokens:
    return TurnTokens.model_construct(  # arrays need no validation
        base=step.base,
        prompt=step.prompt.tolist(),
        completion=step.completion.tolist(),
        # orjson writes float32 with the fewest digits that read back the same, and NaN as null.
        logprobs=orjson.loads(orjson.dumps(step.logprobs, option=orjson.OPT_SERIALIZE_NUMPY)),
        versions=[(version, len(list(same))) for version, same in groupby(step.versions.tolist())],
        rendered=step.rendered,
        cause=fork or step.cause,
        dropped=step.dropped,
    )
