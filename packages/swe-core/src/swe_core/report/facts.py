"""RunFacts: a run in numbers and sentences, from its finished rollouts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar, get_args

from swe_core.api.blame import may_be_policys
from swe_core.api.engine import ForkCause
from swe_core.api.grader import TamperKind
from swe_core.api.records import Budget, Outcome, Phases
from swe_core.errors import Boundary
from swe_core.report.finished import Finished
from swe_core.report.statistics import PassAtK, TaskResult, estimates, task_results
from swe_core.system.natural_order import natural_key

F = TypeVar("F", bound=Finished)

BUDGETS: dict[Budget, str] = {
    "turns": "turns",
    "completion_tokens": "completion tokens",
    "context": "context",
    "wall": "time",
}
CAUSES: dict[ForkCause, str] = {
    "start": "it begins a conversation",
    "branch": "another turn had extended that history already, say before a retry",
    "rewritten": "the client changed its history, as it does to compact it",
    "template": "the chat template renders a turn otherwise once more follows it",
    "retokenised": "the same text came out as other ids",
    "truncated": "the reply before was cut, and the format cannot close it",
    "unknown": "the engine does not say why",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of one phase over the rollouts that reached it. `p90` is the nearest rank."""

    count: int
    total: float
    median: float
    p90: float
    longest: float


@dataclass(frozen=True, slots=True)
class Failures:
    """Errors of one boundary and one type: their number, and the message of the first."""

    boundary: Boundary
    type: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """Rollouts whose patch adds suspicious constructs: all, the resolved ones, and those of each kind."""

    rollouts: int
    resolved: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Tampered:
    """Rollouts whose grade lists tampering: all, and those of each kind."""

    rollouts: int
    kinds: dict[TamperKind, int]


@dataclass(frozen=True, slots=True)
class SandboxSum:
    """Sandboxes of one provider and flavor (None without flavors), and how long they were open."""

    provider: str
    flavor: str | None
    sandboxes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Rollouts that ran again after a failure of their sandboxes, and the lost attempts: their wall time, and
    the tokens of the agent's LLM calls."""

    rollouts: int
    tries: int
    seconds: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A run in numbers.

    Args:
        outcomes: Rollouts of each outcome, all four of them.
        errors: Boundary → rollouts that failed there.
        errors_after_answer: How many of the errors the policy may have caused.
        failures: The same errors by type, the most frequent first.
        cancelled_as: A worker's reason → rollouts that it cancelled.
        resolved_rate: Share of the rollouts with a verdict that are resolved; None without any. It leaves out
            all errors, also those of `errors_after_answer`.
        tasks: Each task's results, by its id.
        passes: pass@k for some k, from 1 on; none without a verdict.
        phases: Phase → its times, for phases that a rollout reached.
        sandboxes: Use of each provider and flavor, sorted by name, including lost attempts.
        retried: The lost attempts, which of the numbers above only `sandboxes` includes.
    """

    finished: int
    outcomes: dict[str, int]
    errors: dict[Boundary, int]
    errors_after_answer: int
    failures: tuple[Failures, ...]
    cancelled_as: dict[str, int]
    resolved_rate: float | None
    tasks: tuple[TaskResult, ...]
    passes: tuple[PassAtK, ...]
    tampering: Tampered
    suspicious: Suspected
    unchecked: tuple[str, ...]  # sentences about bases that could not be compared with the base_commit
    notes: tuple[str, ...]  # of patches and verdicts, each after the rollouts that have it
    turns: int
    prompt_tokens: int
    completion_tokens: int
    phases: dict[str, Spread]
    sandboxes: tuple[SandboxSum, ...]
    retried: RunAgain

    @property
    def sandbox_seconds(self) -> float:
        """Return how long all sandboxes were open, seconds."""
        return sum(used.seconds for used in self.sandboxes)


def without_evaluations(rollouts: Iterable[F]) -> list[F]:
    """Return the rollouts that are no evaluation while training, whose pass rates stand for themselves."""
    return [rollout for rollout in rollouts if rollout.evaluation is None]


def facts_of(rollouts: Sequence[Finished]) -> Facts:
    """Return the facts of `rollouts`."""
    outcomes = Counter(rollout.outcome for rollout in rollouts)
    scored = outcomes["resolved"] + outcomes["unresolved"]
    tasks = task_results(rollouts)
    phases = {
        name: spread
        for name in Phases.model_fields
        if (spread := _spread(getattr(rollout.phases, name) for rollout in rollouts))
    }
    return Facts(
        finished=len(rollouts),
        outcomes={name: outcomes[name] for name in get_args(Outcome)},
        errors=dict(Counter(rollout.failure.boundary for rollout in rollouts if rollout.failure)),
        errors_after_answer=sum(map(may_be_policys, rollouts)),
        failures=_failures(rollouts),
        cancelled_as=dict(Counter(rollout.cancelled_as for rollout in rollouts if rollout.cancelled_as)),
        resolved_rate=outcomes["resolved"] / scored if scored else None,
        tasks=tasks,
        passes=estimates(tasks),
        tampering=_tampering(rollouts),
        suspicious=_suspicious(rollouts),
        unchecked=unchecked_bases((r.task_id, r.grade.unchecked) for r in rollouts if r.grade),
        notes=_notes(rollouts),
        turns=sum(rollout.turns for rollout in rollouts),
        prompt_tokens=sum(rollout.usage.prompt_tokens for rollout in rollouts),
        completion_tokens=sum(rollout.usage.completion_tokens for rollout in rollouts),
        phases=phases,
        sandboxes=_sandboxes(rollouts),
        retried=_run_again(rollouts),
    )


def tamper_kinds(rollout: Finished) -> tuple[TamperKind, ...]:
    """Return the kinds of tampering that the grade lists, each once."""
    found = rollout.grade.tampering if rollout.grade else ()
    return tuple(dict.fromkeys(one.kind for one in found))


def why(rollout: Finished) -> str:
    """Return a sentence about the end of a rollout; empty for a resolved one without further facts."""
    parts = []
    if rollout.ended_by is not None:
        parts.append(f"the agent's run was ended by its budget of {BUDGETS[rollout.ended_by]}")
    if rollout.agent_failure is not None:
        parts.append(rollout.agent_failure)
    if rollout.cancelled_as is not None:
        parts.append(f"cancelled as {rollout.cancelled_as}")
    if rollout.retried:
        times = "" if len(rollout.retried) == 1 else f" {len(rollout.retried)} times"
        parts.append(f"run again{times} after the sandbox failed ({rollout.retried[-1].failure.message})")
    if rollout.failure is not None:
        parts.append(f"{rollout.failure.boundary}: {rollout.failure.message}")
    elif rollout.grade and rollout.grade.reason:
        parts.append(rollout.grade.reason)
    return "; ".join(parts)


def _spread(seconds: Iterable[float | None]) -> Spread | None:
    values = sorted(value for value in seconds if value is not None)
    if not values:
        return None
    p90 = values[math.ceil(0.9 * len(values)) - 1]
    return Spread(len(values), sum(values), median(values), p90, values[-1])


def _failures(rollouts: Sequence[Finished]) -> tuple[Failures, ...]:
    failures = [rollout.failure for rollout in rollouts if rollout.failure]
    counted = Counter((failure.boundary, failure.type) for failure in failures)
    first = {(failure.boundary, failure.type): failure.message for failure in reversed(failures)}
    return tuple(Failures(*kind, count, first[kind]) for kind, count in counted.most_common())


def _sandboxes(rollouts: Sequence[Finished]) -> tuple[SandboxSum, ...]:
    counts: Counter[tuple[str, str | None]] = Counter()
    seconds: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for rollout in rollouts:
        for used in rollout.sandboxes:
            key = rollout.sandbox, used.flavor
            counts[key] += used.sandboxes
            seconds[key] += used.seconds
    order = sorted(counts, key=lambda key: (key[0], key[1] or ""))
    return tuple(SandboxSum(*key, counts[key], round(seconds[key], 4)) for key in order)


def _run_again(rollouts: Sequence[Finished]) -> RunAgain:
    lost = [one for rollout in rollouts for one in rollout.retried]
    return RunAgain(
        rollouts=sum(bool(rollout.retried) for rollout in rollouts),
        tries=len(lost),
        seconds=round(sum(one.seconds for one in lost), 4),
        prompt_tokens=sum(one.usage.prompt_tokens for one in lost),
        completion_tokens=sum(one.usage.completion_tokens for one in lost),
    )


def suspicious_kinds(rollout: Finished) -> tuple[str, ...]:
    """Return the kinds of suspicious constructs that the patch adds, each once."""
    found = rollout.grade.suspicious if rollout.grade else ()
    return tuple(dict.fromkeys(one.kind for one in found))


def unchecked_bases(tasks: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return a sentence for each reason why bases of tasks could not be compared with their `base_commit`.

    Args:
        tasks: Ids and reasons; an empty reason is a base that was compared.
    """
    by_reason: defaultdict[str, set[str]] = defaultdict(set)
    for task, why in tasks:
        if why:
            by_reason[why].add(task)
    return tuple(
        f"Nobody checked the base_commit of {_first(named)}: {why}."
        for why, named in sorted(by_reason.items())
    )


def notes_of(rollout: Finished) -> tuple[str, ...]:
    """Return the notes of a rollout, on its patch and its verdict."""
    return (*rollout.notes, *(rollout.grade.notes if rollout.grade else ()))


def _notes(rollouts: Sequence[Finished]) -> tuple[str, ...]:
    by_note: defaultdict[str, set[str]] = defaultdict(set)
    for rollout in rollouts:
        for note in notes_of(rollout):
            by_note[note].add(rollout.id)
    return tuple(f"{_first(named)}: {note}" for note, named in by_note.items())


def _first(names: Iterable[str]) -> str:
    found = sorted(names, key=natural_key)
    return f"{', '.join(found[:3])}{f' and {len(found) - 3:,} more' if len(found) > 3 else ''}"


def _suspicious(rollouts: Sequence[Finished]) -> Suspected:
    marked = [rollout for rollout in rollouts if suspicious_kinds(rollout)]
    counted = Counter(kind for rollout in marked for kind in suspicious_kinds(rollout))
    resolved = sum(rollout.grade is not None and rollout.grade.resolved for rollout in marked)
    return Suspected(len(marked), resolved, dict(counted.most_common()))


def _tampering(rollouts: Sequence[Finished]) -> Tampered:
    kinds = [tamper_kinds(rollout) for rollout in rollouts]
    counted = Counter(kind for found in kinds for kind in found)
    return Tampered(sum(bool(found) for found in kinds), dict(counted.most_common()))
