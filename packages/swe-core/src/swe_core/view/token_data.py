"""The turns of a rollout and the rows that they make, as JSON for the pages of tokens and chains.

Every id is written once: a turn keeps what it adds to another turn, and a row is a list of turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_core.api.messages import text_of
from swe_core.api.records import EVALUATION, FOREIGN, SUMMARY, Turn, TurnTokens, requests_of
from swe_core.errors import LedgerError, UsageError
from swe_core.report.facts import CAUSES
from swe_core.report.finished import RolloutHead
from swe_core.rollout.training_records import VOCABULARY_FILE, Vocabulary, read_vocabulary
from swe_core.tokens.ledger import LOST_NODE, NO_LOGPROBS, RETRIED
from swe_core.view.site import NotShown, ShownRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from swe_core.tokens.chains import Step
    from swe_core.view.training import Training

REASONS: Mapping[str, str] = {
    "aborted": "the agent hung up, or the rollout ended, before the reply was delivered",
    "undelivered": "the reply was complete, but the agent never received it",
    FOREIGN: "the call is not the agent's own: a command in its sandbox made it",
    "failed": "the engine failed during the call",
    "wall": "the rollout's time was over during the call",
    "forced": "the engine was made to give this reply: the policy did not choose it",
    NO_LOGPROBS: "the server gave no log-probability for it",
    "error": "the rollout ended with an error, so it has no reward",
    "cancelled": "the rollout was cancelled, so it has no reward",
    "stale": "the rollout was cancelled as too stale, so it has no reward",
    RETRIED: "the sandbox failed, and the rollout ran again",
    LOST_NODE: "the node was lost, and the rollout ran again on another",
    SUMMARY: "it is the summary of a compaction, and this training leaves those out",
    EVALUATION: "the rollout evaluates the policy on a held-out task",
}
"""Why sampled tokens are not trained. Other reasons are the purpose of an auxiliary call, such as `title`."""
_SHARED = 32
"""Ids that two prompts have in common at least before one is written as an addition to the other."""
_TRIED = 16
"""Ends of conversations, the last ones, that the prompt of a fork is compared with."""
_SHORT = 8
"""Bytes of a message below which it is looked for at the start of a line only."""


def reason_sentence(reason: str) -> str:
    """Return why tokens were dropped, in words."""
    return REASONS.get(reason) or f"an auxiliary call ({reason}), which is not part of the task"


Tries = Sequence[tuple[str, Sequence[Turn], str | None]]
"""The tries of a rollout: the folder, the turns, and why nothing of it is trained."""


def token_data(run: ShownRun, rollout_id: str, tried: Tries) -> dict[str, Any]:
    """Return the tokens of a rollout for its pages.

    Returns:
        `turns` of all tries, `rows` of places in `turns`, `tries`, the `vocabulary` of their ids, and what
        the trainer computed (`trained`, `group`). The scripts token_text.js and token_rows.js read them.

    Raises:
        NotShown: numpy is missing.
        UsageError: The records are damaged.
    """
    try:
        import numpy as np
    except ImportError:
        raise NotShown("This page needs numpy: pip install 'swe-core[view]'.") from None

    vocabulary = _vocabulary(run.path)
    turns: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    tries: list[dict[str, Any]] = []
    for name, recorded, no_reward in tried:
        try:
            one = _Try(name, recorded, len(turns), vocabulary)
            turns += one.turns()
            rows += one.rows()
        except LedgerError as error:
            raise UsageError(f"the turns of {rollout_id!r} do not fit together: {error}") from None
        tries.append({"name": name, "no_reward": no_reward})
    with_ids = [np.asarray(turn[part], np.int32) for turn in turns for part in ("prompt", "reply")]
    used = np.unique(np.concatenate(with_ids)).tolist() if with_ids else []
    reasons = {turn["dropped"] for turn in turns} | {one["no_reward"] for one in tries} | {NO_LOGPROBS}
    return {
        "id": rollout_id,
        "tries": tries,
        "turns": turns,
        "rows": rows,
        "vocabulary": _used(vocabulary, used),
        "reasons": {reason: reason_sentence(reason) for reason in sorted(reasons - {None})},
        "causes": CAUSES,
        "trained": [
            {**row._asdict(), "logprobs": run.training.logprobs(row)}
            for row in run.training.rows_of(rollout_id)
        ],
        "group": _membership(run.training, rollout_id),
    }


def tries_of(run: ShownRun, rollout_id: str, head: RolloutHead | None) -> Tries:
    """Return the tries of a rollout, the last one first.

    Args:
        head: Of the rollout; None if it is not finished.

    Raises:
        UsageError: The records are damaged.
    """
    no_reward = None if head is None else head.not_trained
    tried = [("", run.directory.turns(rollout_id), no_reward)]
    if head is not None and head.retried:
        tried += [
            (one.folder, run.directory.turns(rollout_id, one.folder), RETRIED)
            for one in run.heads.record(head).retried
            if one.folder is not None
        ]
    return tried


def earlier_places(turns: Sequence[Turn], first: int) -> list[int | None]:
    """Return the place of the turn that each request extends; None for the first one.

    Args:
        first: Place of the first turn.
    """
    places = {turn.index: first + at for at, turn in enumerate(turns)}
    before = [None, *range(first, first + len(turns))]
    return [
        last if turn.after is None else places.get(turn.after)
        for last, turn in zip(before, turns, strict=False)
    ]


class _Try:
    """One try of a rollout.

    Args:
        first: Place of its first turn among those of the page.
    """

    def __init__(self, name: str, turns: Sequence[Turn], first: int, vocabulary: Vocabulary | None) -> None:
        from swe_core.tokens.chains import ChainBuilder, step_of

        self._name = name
        self._turns = turns
        self._pieces = {} if vocabulary is None else _pieces(vocabulary, turns)
        self._places = {turn.index: first + at for at, turn in enumerate(turns)}
        self._first = first
        self._messages = [body["messages"] for body in requests_of(turns)]
        self._steps: dict[int, Step] = {}
        self._taken: dict[int, int] = {}
        """Turn → the first one that extended it."""
        self._ends: dict[int, None] = {}
        """Turns that none extended so far, in order."""
        self._builder = ChainBuilder()
        for turn in turns:
            if turn.tokens is not None:
                self._steps[turn.index] = step_of(turn.index, turn.tokens)
                self._builder.add(self._steps[turn.index])

    def turns(self) -> list[dict[str, Any]]:
        """Return the turns, in the order in which they ended."""
        begun = self._turns[0].started_at if self._turns else None
        return [
            {
                "try": self._name,
                "index": turn.index,
                "at": round((turn.started_at - begun).total_seconds(), 3) if begun else 0,
                "seconds": round(turn.seconds, 3),
                "finish": turn.finish_reason,
                "error": turn.error,
                "auxiliary": turn.auxiliary,
                **self._tokens(at, turn),
            }
            for at, turn in enumerate(self._turns)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return the chains, and after them the dropped turns that are in none."""
        prefix = f"{self._name}." if self._name else ""
        rows: list[dict[str, Any]] = []
        shown: set[int] = set()
        for number, chain in enumerate(self._builder.parts()):
            parts = [(self._places[step.index], trained) for step, trained in chain.steps]
            shown |= {step.index for step, _ in chain.steps}
            rows.append({"key": f"{prefix}{number}", "try": self._name, "cause": chain.cause, "parts": parts})
        for index, step in self._steps.items():
            if index not in shown and step.dropped is not None:
                line = [self._places[one.index] for one in self._line(step)]
                rows.append(
                    {
                        "key": f"{prefix}d{index}",
                        "try": self._name,
                        "cause": None,
                        "parts": [(place, False) for place in line],
                    }
                )
        return rows

    def _line(self, step: Step) -> list[Step]:
        """Return the turns whose new ids make the prompt and the reply of `step`, in order."""
        line = [step]
        while step.base is not None:
            step = self._steps[step.base]
            line.append(step)
        return line[::-1]

    def _ids(self, step: Step) -> NDArray[np.int32]:
        """Return the prompt and the reply of `step`."""
        import numpy as np

        return np.concatenate([ids for one in self._line(step) for ids in (one.prompt, one.completion)])

    def _tokens(self, at: int, turn: Turn) -> dict[str, Any]:
        tokens = turn.tokens
        found: dict[str, Any] = {
            "expected": None, "base": None, "of": None, "shared": 0, "prompt": [], "reply": [],
            "logprobs": [], "versions": [], "dropped": None, "rendered": None, "marks": [],
        }  # fmt: skip
        if tokens is None:
            return found
        import numpy as np

        step = self._steps[turn.index]
        expected = self._expected(step)
        of, shared, prompt = tokens.base, 0, tokens.prompt
        if of is None and expected is not None:
            shared = _common(self._ids(self._steps[expected]), step.prompt)
            if shared >= _SHARED:
                of, prompt = expected, prompt[shared:]
            else:
                shared = 0
        found |= {
            "expected": None if expected is None else self._places[expected],
            "base": None if tokens.base is None else self._places[tokens.base],
            "of": None if of is None else self._places[of],
            "shared": shared,
            "prompt": prompt,
            "reply": tokens.completion,
            "logprobs": np.round(step.logprobs, 4),
            "versions": tokens.versions,
            "dropped": tokens.dropped,
            "rendered": tokens.rendered,
            "marks": self._marks(at, tokens),
        }
        return found

    def _expected(self, step: Step) -> int | None:
        """Return the index of the turn that one without a base comes closest to extending: of those with most
        of its first ids the last one. Of a turn with a base, return the one that took its place there.

        Turns are asked for in their order, each once.
        """
        if step.base is not None:
            found = self._taken.setdefault(step.base, step.index)
            self._ends.pop(step.base, None)
            best = None if found == step.index else found
        else:
            ends = [self._steps[index] for index in list(self._ends)[: -_TRIED - 1 : -1]]
            closest = max(ends, key=lambda one: _common(self._ids(one), step.prompt), default=None)
            best = None if closest is None else closest.index
        self._ends[step.index] = None
        return best

    def _marks(self, at: int, tokens: TurnTokens) -> list[tuple[int, int, str, int]]:
        """Return where the messages of a turn's own prompt stand: first id, end, role, number in the request.

        They are looked for as text, because only a renderer knows the format. One that is not found, such as
        arguments that a format prints in its own way, has no mark.
        """
        if not self._pieces:
            return []
        import numpy as np

        pieces = [self._pieces.get(id_, "") for id_ in tokens.prompt]
        ends = np.cumsum([len(piece) for piece in pieces])
        text = "".join(pieces)
        messages = self._messages[at]
        known = 0
        if tokens.base is not None:
            known = _same(self._messages[self._places[tokens.base] - self._first], messages)
        marks, cursor = [], 0
        for number, message in enumerate(messages[known:], known):
            wanted = _content(message)
            if tokens.base is not None and number == known and message.get("role") == "assistant":
                continue  # the reply of the base
            found = text.find(wanted if len(wanted) >= _SHORT else f"\n{wanted}", cursor) if wanted else -1
            if found < 0:
                continue
            cursor = found + len(wanted)
            first = int(np.searchsorted(ends, found + (len(wanted) < _SHORT), side="right"))
            end = int(np.searchsorted(ends, cursor - 1, side="right")) + 1
            marks.append((first, end, str(message.get("role")), number))
        return marks


def _content(message: Mapping[str, Any]) -> str:
    """Return the text of a message as a vocabulary writes it: a character for each byte."""
    try:
        text = text_of(message.get("content"), message.get("role"))
        return text.strip().encode("utf-8", "replace").decode("latin-1")
    except ValueError:  # an image, say
        return ""


def _same(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the number of first messages that two requests have in common."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return the number of first ids that two arrays have in common."""
    shorter = min(len(one), len(other))
    differing = one[:shorter] != other[:shorter]
    return int(differing.argmax()) if differing.any() else shorter


def _membership(training: Training, rollout_id: str) -> dict[str, Any] | None:
    """Return what the closed group of a rollout says about it; None if its group is not closed."""
    for group in training.groups.values():
        for member in group.members:
            if member.rollout_id == rollout_id:
                return {"skipped": group.skipped, "left_out": member.left_out}
    return None


def _pieces(vocabulary: Vocabulary, turns: Sequence[Turn]) -> dict[int, str]:
    """Return the texts of the ids in the prompts of turns, a character for each byte."""
    tokens = vocabulary.tokens
    used = set().union(*(turn.tokens.prompt for turn in turns if turn.tokens is not None))
    return {id_: tokens[id_] or "" for id_ in used if 0 <= id_ < len(tokens)}


def _used(vocabulary: Vocabulary | None, ids: Sequence[int]) -> dict[str, Any] | None:
    """Return the part of a vocabulary that a page needs."""
    if vocabulary is None:
        return None
    tokens, special = vocabulary.tokens, vocabulary.special
    return {
        "ids": ids,
        "tokens": [tokens[id_] if 0 <= id_ < len(tokens) else None for id_ in ids],
        "special": {id_: special[id_] for id_ in ids if id_ in special},
    }


def _vocabulary(run: Path) -> Vocabulary | None:
    try:
        status = (run / VOCABULARY_FILE).stat()
    except OSError:
        return None
    return _read_vocabulary(run, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)  # a large one takes a quarter of a second to read, and 20 MB
def _read_vocabulary(run: Path, changed: int, size: int) -> Vocabulary | None:
    return read_vocabulary(run)
