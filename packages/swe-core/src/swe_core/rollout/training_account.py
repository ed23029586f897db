"""What became of the sampled tokens of a training, by the trainer's journal.

A token is trainable if a row of a rollout with a verdict has it (`swe_core.tokens.ledger`), and trained if an
optimizer step had that row and its weights are not lost. The journal has two views for readers, so this
works for a training that runs, was killed, or has ended.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from swe_core.api.records import Rollout
from swe_core.rollout.training_records import EARLIER_FILE, JOURNAL_FILE, SUMMARY_FILE
from swe_core.system.files import open_below
from swe_core.system.plural import counted

_TIMEOUT = 5.0
"""Seconds to wait for a trainer that writes."""


class Counted(Protocol):
    """The account of one rollout: a `swe_core.api.records.Ledger`, or what the viewer reads of it."""

    @property
    def sampled(self) -> int: ...
    @property
    def trainable(self) -> int: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class TrainingAccount:
    """The account of a training: `trainable == trained + waiting + sum(left_out) + unaccounted`.

    Args:
        steps: Optimizer steps.
        policy_version: Highest version of the policy.
        groups: Begun groups.
        sampled: Sampled tokens of all rollouts.
        trainable: Those in rows of rollouts with a verdict.
        trained: Trainable tokens that a step trained.
        waiting: Trainable tokens of finished attempts that no step has trained or left out.
        left_out: Reason of a skipped group, or of a row that the trainer left out → trainable tokens.
        dropped: Reason → tokens that are not trainable.
    """

    steps: int
    policy_version: int
    groups: int
    sampled: int
    trainable: int
    trained: int
    waiting: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def unaccounted(self) -> int:
        """Return the trainable tokens of which nothing is known; 0 after the end of a training."""
        return self.trainable - self.trained - self.waiting - sum(self.left_out.values())

    def summary(self) -> dict[str, Any]:
        """Return the content of `training.json` (docs/internals/run-directory.md)."""
        return {
            "steps": self.steps,
            "policy_version": self.policy_version,
            "groups": self.groups,
            "tokens": {
                "sampled": self.sampled,
                "trained": self.trained,
                "waiting": self.waiting,
                "dropped": dict(Counter(self.dropped) + Counter(self.left_out)),
                "unaccounted": self.unaccounted,
            },
        }

    def sentence(self) -> str:
        """Return the account as one sentence."""
        parts = [f"{self.trained:,} trained", f"{self.waiting:,} waiting"]
        parts += [f"{tokens:,} {reason}" for reason, tokens in self.left_out.items() if tokens]
        parts += [f"{self.unaccounted:,} unaccounted for"] if self.unaccounted else []
        return (
            f"{counted(self.steps, 'step')}, policy version {self.policy_version}, "
            f"{counted(self.groups, 'group')}: {self.trainable:,} trainable tokens = {' + '.join(parts)}"
        )


def training_account(
    run: Path, ledgers: Iterable[Counted], *, ended: bool | None = None
) -> TrainingAccount | None:
    """Return the account of the training in a run directory; None for another run, or if nothing is known.

    Args:
        run: The run directory, which is not trusted.
        ledgers: The accounts of its finished rollouts.
        ended: Whether the training has ended, so that the journal has every finished attempt. Before, the
            attempts that it does not have are waiting. None: whether it has a summary.
    """
    every = [*ledgers, *_earlier(run)]
    found = _journal(run)
    if found is None:
        return None
    steps, version, groups, tokens = found
    dropped: Counter[str] = Counter()
    for ledger in every:
        dropped.update(ledger.dropped)
    trainable = sum(ledger.trainable for ledger in every)
    left_out = {name: count for name, count in tokens.items() if name not in ("trained", "waiting") and count}
    trained, waiting = tokens.get("trained", 0), tokens.get("waiting", 0)
    if not ((run / SUMMARY_FILE).exists() if ended is None else ended):
        waiting = max(waiting, trainable - trained - sum(left_out.values()))
    return TrainingAccount(
        steps=steps,
        policy_version=version,
        groups=groups,
        sampled=sum(ledger.sampled for ledger in every),
        trainable=trainable,
        trained=trained,
        waiting=waiting,
        left_out=left_out,
        dropped=dropped,
    )


_Found = tuple[int, int, int, Mapping[str, int]]
"""Steps, policy version, groups, and trainable tokens by what became of them."""


def _journal(run: Path) -> _Found | None:
    try:
        open_below(run / JOURNAL_FILE, run).close()
        # Beside a file that nobody has open, SQLite would leave two files of its own.
        how = "mode=ro" if (run / f"{JOURNAL_FILE}-wal").exists() else "immutable=1"
        address = f"{(run / JOURNAL_FILE).absolute().as_uri()}?{how}"
        with closing(sqlite3.connect(address, uri=True, timeout=_TIMEOUT)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            steps, version, groups = db.execute(
                "SELECT steps, policy_version, groups FROM progress"
            ).fetchone()
            tokens = {str(fate): int(count) for fate, count in db.execute("SELECT fate, tokens FROM tokens")}
            return int(steps), int(version), int(groups), tokens
    except (OSError, sqlite3.Error, TypeError, ValueError):
        return None


def _earlier(run: Path) -> Iterator[Counted]:
    """Yield the ledgers of rollouts from before the restore of a run."""
    try:
        with open_below(run / EARLIER_FILE, run) as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            ledger = Rollout.model_validate_json(line).ledger
        except ValidationError:  # a damaged line
            continue
        if ledger is not None:
            yield ledger
