"""What a trainer recorded of a run: trained rows and closed groups, read as their files grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import NamedTuple

from pydantic import ValidationError

from swe_core.api.engine import ForkCause
from swe_core.rollout.training_records import GROUPS_FILE, TRAINED_FILE, ClosedGroup, TrainedRow
from swe_core.system.files import open_below

_LOGPROBS = b'"logprobs":['


class Trained(NamedTuple):
    """As `swe_core.rollout.training_records.TrainedRow`, without its logprobs.

    Args:
        offset, size: Place of its line in the file, bytes.
    """

    step: int
    version: int
    rollout_id: str
    row: int
    cause: ForkCause | None
    advantage: float
    weight: float
    tokens: int
    clipped: int | None
    offset: int
    size: int


class Training:
    """The records of a trainer in a run directory; empty for an evaluation.

    As in `swe_core.rollout.training_records`, damaged lines and those of lost weights are left out.

    Attributes:
        rows: The trained rows in the order of their steps.
        groups: The closed groups by the key of their page, such as `g3`.
        version: Changes whenever they do.
        first_versions: Rollout → policy version of its first tokens, as far as `swe_core.view.staleness` read
            them.
    """

    def __init__(self, run: Path) -> None:
        self.version = 0
        self.first_versions: dict[str, int | None] = {}
        self._run = run
        self._clear()

    def _clear(self) -> None:
        self.rows: list[Trained] = []
        self.groups: dict[str, ClosedGroup] = {}
        self._last = (-1, -1)
        self._read = {TRAINED_FILE: 0, GROUPS_FILE: 0}
        self._by_rollout: dict[str, list[Trained]] | None = None

    def __bool__(self) -> bool:
        return bool(self.rows or self.groups)

    def refresh(self) -> None:
        """Read the lines that were added. If a file was cut or replaced by a shorter one, read all again."""
        if any(_size(self._run / name) < read for name, read in self._read.items()):
            self._clear()
            self.version += 1
        self._follow(TRAINED_FILE, self._add_row)
        self._follow(GROUPS_FILE, self._add_group)

    def rows_of(self, rollout_id: str) -> Sequence[Trained]:
        """Return the trained rows of one rollout."""
        if self._by_rollout is None:
            self._by_rollout = {}
            for row in self.rows:
                self._by_rollout.setdefault(row.rollout_id, []).append(row)
        return self._by_rollout.get(rollout_id, ())

    def logprobs(self, row: Trained) -> list[float | None] | None:
        """Return the trainer's log-probability of each trained id of a row; None if they are not known."""
        try:
            with open_below(self._run / TRAINED_FILE, self._run) as file:
                file.seek(row.offset)
                return TrainedRow.model_validate_json(file.read(row.size)).logprobs
        except (OSError, ValidationError):  # the file was replaced
            return None

    def _follow(self, name: str, add: Callable[[bytes], None]) -> None:
        try:
            with open_below(self._run / name, self._run) as file:
                file.seek(self._read[name])
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._read[name] += len(line)
                    try:
                        add(line)
                        self.version += 1
                    except ValidationError:  # a damaged line
                        continue
        except OSError:
            return

    def _add_row(self, line: bytes) -> None:
        found = TrainedRow.model_validate_json(_without_logprobs(line))
        offset = self._read[TRAINED_FILE] - len(line)
        row = Trained(**found.model_dump(exclude={"logprobs"}), offset=offset, size=len(line))
        at = row.step, row.version
        if at != self._last and row.step <= self._last[0]:  # a resumed training: later weights were lost
            self.rows = [one for one in self.rows if one.step < row.step]
        self._last = at
        self.rows.append(row)
        self._by_rollout = None

    def _add_group(self, line: bytes) -> None:
        group = ClosedGroup.model_validate_json(line)
        self.groups[f"g{group.group}"] = group


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return the advantages that a trainer computes: `(reward - mean) / (std + 1e-8)`, population `std`."""
    if not rewards:
        return []
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + 1e-8) for reward in rewards]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _without_logprobs(line: bytes) -> bytes:
    """Return a line without its log-probabilities, most of its length, which need not be parsed.

    No text in the line has the quotation marks that are searched for, because JSON escapes them.
    """
    start = line.find(_LOGPROBS)
    end = line.find(b"]", start)
    if start < 0 or end < 0:
        return line
    return line[:start] + b'"logprobs":null' + line[end + 1 :]
