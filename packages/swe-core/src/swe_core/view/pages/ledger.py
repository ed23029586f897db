"""The pages of the token ledger: of a run, and of one rollout, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from swe_core.api.records import Turn
from swe_core.report.facts import CAUSES
from swe_core.report.finished import RolloutHead
from swe_core.rollout.training_account import training_account
from swe_core.system.natural_order import natural_key
from swe_core.system.printable import printable
from swe_core.tokens.ledger import NO_LOGPROBS
from swe_core.view.render import Page
from swe_core.view.site import NotShown, ShownRun, Site
from swe_core.view.token_data import reason_sentence, tries_of


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the tokens of a run or a rollout.

    Args:
        name: Short, such as a reason.
        said: What it means.
        tokens: Its size.
        rollouts: Rollouts that have some of it.
    """

    name: str
    said: str
    tokens: int
    rollouts: int = 1


@dataclass(frozen=True, slots=True)
class TurnLine:
    """The tokens of one call: `sampled` are `trainable` and those that are `dropped` for reasons."""

    turn: Turn
    sampled: int
    trainable: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Try:
    """The calls of one try of a rollout. `folder` is empty for the last one."""

    folder: str
    lines: Sequence[TurnLine]


def page(site: Site, query: Mapping[str, str], name: str) -> Page:
    """Return the ledger of a run. What its URL asks for is read in the browser."""
    run = site.run(name)
    heads = [head for head in run.heads.all() if head.ledger is not None]
    if not heads:
        raise NotShown(
            f"The run {name!r} has no token ledger: only an engine that owns its tokens, such as vllm, "
            "gives one."
        )
    version = f"{run.heads.version}:{run.training.version}"
    return Page("ledger.html", partial(_values, run, heads), version)


def _values(run: ShownRun, heads: Sequence[RolloutHead]) -> dict[str, Any]:
    sampled = trainable = chains = 0
    dropped: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    with_reason: Counter[str] = Counter()
    with_cause: Counter[str] = Counter()
    for head in heads:
        ledger = head.ledger
        if ledger is not None:
            sampled += ledger.sampled
            trainable += ledger.trainable
            chains += ledger.chains
            dropped.update(ledger.dropped)
            forks.update(ledger.forks)
            with_reason.update(ledger.dropped.keys())
            with_cause.update(ledger.forks.keys())
    reasons = [Part(one, reason_sentence(one), n, with_reason[one]) for one, n in dropped.most_common()]
    causes = [Part(one, _cause(one), n, with_cause[one]) for one, n in forks.most_common()]
    fate_of = _fates(run, heads)
    fates = _summed(run, heads, fate_of)
    return {
        "title": f"Token ledger of {run.name}",
        "run": run,
        "sampled": sampled,
        "trainable": trainable,
        "dropped": sum(dropped.values()),
        "missing": sampled - trainable - sum(dropped.values()),
        "rollouts": len(heads),
        "with_trainable": sum(head.ledger.trainable > 0 for head in heads if head.ledger is not None),
        "without": len(run.heads) - len(heads),
        "chains": chains,
        "reasons": reasons,
        "causes": causes,
        "fates": fates,
        "account": training_account(
            run.directory.path, [head.ledger for head in heads if head.ledger is not None]
        ),
        "data": {
            "reasons": [printable(one.name) for one in reasons],
            "causes": [printable(one.name) for one in causes],
            "fates": [printable(one.name) for one in fates],
            "rows": _rows(heads, reasons, causes, {one.name: at for at, one in enumerate(fates)}, fate_of),
        },
    }


def page_of_rollout(site: Site, query: Mapping[str, str], name: str, rollout_id: str) -> Page:
    """Return the ledger of one rollout, turn by turn, and whether its calls on disk prove it."""
    run = site.run(name)
    head = run.head(rollout_id)
    tries = [
        Try(folder, [_line(turn, no_reward) for turn in turns if turn.tokens is not None])
        for folder, turns, no_reward in tries_of(run, rollout_id, head)
    ]
    if not any(one.lines for one in tries):
        raise NotShown(
            f"The rollout {rollout_id!r} has no tokens: only an engine that owns them, such as vllm, "
            "records them."
        )
    dropped: Counter[str] = Counter()
    for one in tries:
        for line in one.lines:
            dropped.update(line.dropped)
    rows = run.training.rows_of(rollout_id)
    values = {
        "title": f"Token ledger of {rollout_id}",
        "run": run,
        "id": rollout_id,
        "head": head,
        "here": "ledger",
        "tries": tries,
        "sampled": sum(line.sampled for one in tries for line in one.lines),
        "trainable": sum(line.trainable for one in tries for line in one.lines),
        "reasons": [Part(one, reason_sentence(one), n) for one, n in dropped.most_common()],
        "proof": _proof(run, head),
        "rows": rows,
        "in_steps": sum({row.row: row.tokens for row in rows}.values()),
        "causes": CAUSES,
    }
    return Page("rollout_ledger.html", values)


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the runs with a ledger."""
    for run in map(site.run, site.runs):
        if any(head.ledger for head in run.heads.all()):
            yield (run.name,)


def paths_of_rollouts(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the run and the id of each rollout with sampled tokens."""
    for run in map(site.run, site.runs):
        for head in run.heads.all():
            if head.ledger is not None and head.ledger.sampled:
                yield run.name, head.id


def _line(turn: Turn, no_reward: str | None) -> TurnLine:
    """Return the account of one call, by the rules of `swe_core.tokens.ledger.prove`."""
    tokens = turn.tokens
    if tokens is None:
        return TurnLine(turn, 0, 0, {})
    sampled = len(tokens.completion)
    if tokens.dropped is not None:
        return TurnLine(turn, sampled, 0, {tokens.dropped: sampled} if sampled else {})
    unknown = sum(logprob is None for logprob in tokens.logprobs)
    trainable = sampled - unknown
    dropped = {NO_LOGPROBS: unknown} if unknown else {}
    if no_reward is not None and trainable:
        return TurnLine(turn, sampled, 0, {**dropped, no_reward: trainable})
    return TurnLine(turn, sampled, trainable, dropped)


def _proof(run: ShownRun, head: RolloutHead | None) -> tuple[bool | None, str]:
    """Return whether the calls on disk prove the ledger, and a sentence; None if it was not checked."""
    if head is None:
        return None, "The rollout is not finished, so it has no ledger yet."
    try:
        from swe_core.report.token_audit import audit
    except ImportError:
        return None, "The check needs numpy: pip install 'swe-core[view]'."
    found = audit(run.directory, [run.heads.record(head)])
    if found.problems:
        return False, found.problems[0]
    return True, "The rows were built again from the calls on disk, and they give the numbers of the record."


def _fates(run: ShownRun, heads: Sequence[RolloutHead]) -> dict[str, str]:
    """Return rollout → what the trainer did with its trainable tokens; empty without a trainer."""
    training = run.training
    if not training:
        return {}
    found = dict.fromkeys((row.rollout_id for row in training.rows), TRAINED)
    for group in training.groups.values():
        for member in group.members:
            why = group.skipped or member.left_out
            if why is not None:
                found.setdefault(member.rollout_id, why)
    for head in heads:
        found.setdefault(head.id, WAITING)
    return found


def _summed(run: ShownRun, heads: Sequence[RolloutHead], fate_of: Mapping[str, str]) -> list[Part]:
    """Return the trainable tokens by what the trainer did with them."""
    tokens: Counter[str] = Counter()
    rollouts: Counter[str] = Counter()
    in_steps = Counter[str]()
    for (rollout_id, _), size in {(row.rollout_id, row.row): row.tokens for row in run.training.rows}.items():
        in_steps[rollout_id] += size
    for head in heads:
        if fate_of and head.ledger is not None and head.ledger.trainable:
            fate = fate_of[head.id]
            rest = head.ledger.trainable - in_steps[head.id] if fate == TRAINED else 0
            tokens[fate] += head.ledger.trainable - rest
            rollouts[fate] += 1
            if rest:
                tokens[PARTLY] += rest
                rollouts[PARTLY] += 1
    return [
        Part(fate, _FATES.get(fate, "the trainer left it out"), n, rollouts[fate])
        for fate, n in tokens.most_common()
    ]


TRAINED, WAITING, PARTLY = "trained", "waiting", "rest of trained rollouts"
_FATES: Mapping[str, str] = {
    TRAINED: "an optimizer step used them",
    WAITING: "no step has used them yet: their group is open, or waits for the trainer",
    PARTLY: "other rows of the rollout were trained, these were not, or not yet",
    "no_spread": "all rewards of the group are equal, so all advantages are 0",
    "too_few_scored": "too few attempts of the group have a verdict",
    "overlong": "a budget or the limit of a reply cut the rollout, or too many of its group",
    "stale": "the policy that sampled them was too old",
    "no_tokens": "the group has no trainable token",
}


def _rows(
    heads: Sequence[RolloutHead],
    reasons: Sequence[Part],
    causes: Sequence[Part],
    fate_at: Mapping[str, int],
    fate_of: Mapping[str, str],
) -> list[tuple[object, ...]]:
    """Return what `ledger.js` draws: id, group, outcome, sampled, trainable, dropped, forks, fate."""
    reason_at = {part.name: number for number, part in enumerate(reasons)}
    cause_at = {part.name: number for number, part in enumerate(causes)}
    return [
        (
            head.id,
            head.group,
            head.outcome,
            head.ledger.sampled,
            head.ledger.trainable,
            [(reason_at[reason], tokens) for reason, tokens in head.ledger.dropped.items()],
            [(cause_at[cause], chains) for cause, chains in head.ledger.forks.items()],
            fate_at.get(fate_of.get(head.id, ""), -1) if head.ledger.trainable else -1,
        )
        for head in sorted(heads, key=lambda head: natural_key(head.id))
        if head.ledger is not None
    ]


def _cause(cause: str) -> str:
    return next((said for name, said in CAUSES.items() if name == cause), "")
