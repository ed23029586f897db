"""How old the policy of trained rows was, and which rollouts and groups a training left out."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_core.report.finished import RolloutHead
from swe_core.rollout.run_directory import FOLDERS, TURNS_FILE
from swe_core.system.files import open_below
from swe_core.system.natural_order import natural_key
from swe_core.view.site import ShownRun

MAX_SECONDS = 0.3
"""How long one page may read the versions of rollouts; the next page continues."""
MAX_LISTED = 40
_LINES = 3
_VERSIONS = re.compile(
    rb'"versions":\[\[(\d+),\d+\](?:,\[\d+,\d+\])*\],"rendered":"\w+","cause":[^,]*,"dropped":[^,]*\}\}$'
)
"""The end of a line of `turns.jsonl` with tokens."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Trained rows of one age: updates of the policy from the first call of their rollout to their step."""

    updates: int
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Rollouts that the trainer cancelled for one reason: number, tokens, seconds, and the last ones."""

    reason: str
    rollouts: int
    tokens: int
    seconds: float
    last: Sequence[RolloutHead]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Groups that were not trained for one reason."""

    reason: str
    groups: Sequence[str]


@dataclass(frozen=True, slots=True)
class TrainingFacts:
    """What a training did with its rollouts.

    Args:
        closed: Closed groups.
        behind: Trained rows by age, the youngest first.
        unread: Trained rollouts whose versions are not read yet.
        unknown: Trained rows whose rollout has no version on disk.
        left_out: Reason → attempts that did not count in their group.
    """

    closed: int
    behind: Sequence[Behind]
    unread: int
    unknown: int
    cancelled: Sequence[Cancelled]
    skipped: Sequence[Skipped]
    left_out: dict[str, int]


def training_facts(run: ShownRun, heads: Sequence[RolloutHead]) -> TrainingFacts | None:
    """Return the facts of a training; None for an evaluation."""
    training = run.training
    cancelled = _cancelled(heads)
    if not training and not cancelled:
        return None
    known = training.first_versions
    unread = _read_versions(run.path, [row.rollout_id for row in reversed(training.rows)], known)
    rows: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    unknown = 0
    for row in training.rows:
        first = known.get(row.rollout_id, -1)
        if first is None:
            unknown += 1
        elif first >= 0:
            rows[row.version - first] += 1
            tokens[row.version - first] += row.tokens
    skipped: dict[str, list[str]] = {}
    left_out: Counter[str] = Counter()
    for key, group in training.groups.items():
        if group.skipped is not None:
            skipped.setdefault(group.skipped, []).append(key)
        left_out.update(member.left_out for member in group.members if member.left_out is not None)
    return TrainingFacts(
        len(training.groups),
        [Behind(updates, rows[updates], tokens[updates]) for updates in sorted(rows)],
        unread,
        unknown,
        cancelled,
        [Skipped(reason, sorted(groups, key=natural_key)) for reason, groups in sorted(skipped.items())],
        dict(left_out),
    )


def _cancelled(heads: Sequence[RolloutHead]) -> list[Cancelled]:
    found: dict[str, list[RolloutHead]] = {}
    for head in heads:
        if head.cancelled_as is not None:
            found.setdefault(head.cancelled_as, []).append(head)
    return [
        Cancelled(
            reason,
            len(those),
            sum(head.ledger.sampled for head in those if head.ledger is not None),
            sum(head.seconds for head in those),
            those[: -MAX_LISTED - 1 : -1],
        )
        for reason, those in sorted(found.items())
    ]


def _read_versions(run: Path, wanted: Sequence[str], known: dict[str, int | None]) -> int:
    """Read into `known` which policy version sampled the first tokens of rollouts; None where it is unknown.

    Returns:
        How many of the rollouts were not read, because it took too long.
    """
    end = time.monotonic() + MAX_SECONDS
    missing = [name for name in dict.fromkeys(wanted) if name not in known]
    for at, name in enumerate(missing):
        if time.monotonic() > end:
            return len(missing) - at
        known[name] = _first_version(run / FOLDERS / name / TURNS_FILE, run)
    return 0


def _first_version(path: Path, run: Path) -> int | None:
    """Return the policy version that sampled the first tokens of a rollout; None without tokens."""
    try:
        with open_below(path, run) as file:
            for _ in range(_LINES):
                found = _VERSIONS.search(file.readline().rstrip(b"\n")[-4_000:])
                if found:
                    return int(found[1])
    except OSError:
        pass
    return None
