"""SentRollouts: the file in the run directory that lists what a tracker has. A resume sends the rest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import Field, ValidationError

from swe_core.api.records import Outcome, Record, Rollout
from swe_core.errors import UsageError


class Destination(Record):
    """A run of a tracker."""

    project: str
    run: str
    space: str | None = None


class SentRollout(Record):
    """A line of the file: a rollout that was sent."""

    to: Destination
    step: int = Field(ge=0, description="the tracker's step of the rollout")
    id: str
    started_at: datetime
    outcome: Outcome


class SentRollouts:
    """The rollouts that a tracker has, in the order of its steps.

    Args:
        path: Path of the file, which need not exist.

    Attributes:
        outcomes: How often each outcome occurs. Of a rollout that ran again, the last one counts.

    Raises:
        UsageError: A line of the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[SentRollout] = []
        self._last: dict[str, SentRollout] = {}
        self.outcomes: Counter[Outcome] = Counter()
        for line in _read(path):
            self._count(line)

    @property
    def destination(self) -> Destination | None:
        """Return the run that the rollouts were sent to; None if there are none."""
        return self._lines[-1].to if self._lines else None

    @property
    def next_step(self) -> int:
        """Return the step of the next rollout."""
        return self._lines[-1].step + 1 if self._lines else 0

    def steps(self) -> set[int]:
        """Return the steps of all rollouts."""
        return {line.step for line in self._lines}

    def has(self, rollout: Rollout) -> bool:
        """Return whether the tracker has this rollout. One that ran again under its id is another one."""
        last = self._last.get(rollout.id)
        return last is not None and last.started_at == rollout.started_at

    def add(self, rollout: Rollout, to: Destination) -> None:
        """Append a rollout as the next step of the run `to`.

        Raises:
            OSError: The file cannot be written.
        """
        line = SentRollout(
            to=to,
            step=self.next_step,
            id=rollout.id,
            started_at=rollout.started_at,
            outcome=rollout.outcome,
        )
        with self._path.open("ab") as file:
            file.write(_text(line))
        self._count(line)

    def forget(self, steps: Collection[int]) -> None:
        """Forget the rollouts of these steps, which the tracker has lost.

        Raises:
            OSError: The file cannot be written.
        """
        if not steps:
            return
        left = [line for line in self._lines if line.step not in steps]
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_bytes(b"".join(map(_text, left)))
        new.replace(self._path)
        self._lines, self._last = [], {}
        self.outcomes.clear()
        for line in left:
            self._count(line)

    def _count(self, line: SentRollout) -> None:
        before = self._last.get(line.id)
        if before is not None:
            self.outcomes[before.outcome] -= 1
        self.outcomes[line.outcome] += 1
        self._last[line.id] = line
        self._lines.append(line)


def _text(line: SentRollout) -> bytes:
    return orjson.dumps(line.model_dump(mode="json")) + b"\n"


def _read(path: Path) -> list[SentRollout]:
    """Return the lines of the file; an incomplete last one is removed."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    if lines and not lines[-1].endswith(b"\n"):
        os.truncate(path, sum(map(len, lines)) - len(lines.pop()))
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(SentRollout.model_validate_json(line))
        except ValidationError:
            raise UsageError(
                f"line {number} of {str(path)!r} is damaged: remove the file, and all rollouts are sent again"
            ) from None
    return found
