"""`metrics.jsonl`: the log of a trainer, one line per optimizer step (docs/internals/run-directory.md)."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress
from pathlib import Path

from pydantic import Field, ValidationError

from swe_core.api.records import Record
from swe_core.errors import UsageError

METRICS_FILE = "metrics.jsonl"
LARGEST = 1e100
"""Larger absolute values count as infinite: no axis can show them."""


class StepMetrics(Record):
    """A line of `metrics.jsonl`."""

    step: int = Field(ge=0, le=2**53, description="optimizer steps so far; decreases only at a resume")
    time: datetime
    values: dict[str, float | None] = Field(description="name → value; null where it is not finite")


@dataclass(frozen=True, slots=True)
class Metric:
    """The values of one name.

    Args:
        steps: The steps with a finite value, increasing.
        values: Those values.
        not_finite: The steps at which it was not finite.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    not_finite: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Metrics:
    """The log of a trainer.

    Args:
        metrics: By name, in the order of their first occurrence.
        first, last: Time of the first and of the last line.
        unreadable: Damaged lines, which are left out; not those of a torn end.
    """

    metrics: tuple[Metric, ...]
    last_step: int
    first: datetime
    last: datetime
    unreadable: int


@dataclass(slots=True)
class _Series:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def put(self, step: int, value: float) -> None:
        if self.steps and self.steps[-1] == step:
            self.values[-1] = value
        else:
            self.steps.append(step)
            self.values.append(value)

    def rewind(self, step: int) -> None:
        keep = bisect_left(self.steps, step)
        del self.steps[keep:], self.values[keep:]


def read_metrics(run: Path) -> Metrics | None:
    """Read the `metrics.jsonl` of the run directory `run`; None without a file or a line.

    A step lower than the one before is that of a run that was resumed from a checkpoint. Earlier lines of
    that step and of later ones are left out: their weights are lost. An incomplete last line is left out too.

    Raises:
        UsageError: The file cannot be read.
    """
    path = run / METRICS_FILE
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    series: dict[str, _Series] = {}
    read: list[StepMetrics] = []
    unreadable = 0
    for line in lines:
        try:
            found = StepMetrics.model_validate_json(line)
        except ValidationError:
            unreadable += 1
            continue
        if read and found.step < read[-1].step:
            for one in series.values():
                one.rewind(found.step)
        read.append(found)
        for name, value in found.values.items():
            series.setdefault(name, _Series()).put(found.step, math.nan if value is None else value)
    if not read:
        return None
    metrics = tuple(_metric(name, one) for name, one in series.items())
    return Metrics(metrics, read[-1].step, read[0].time, read[-1].time, unreadable)


def _metric(name: str, series: _Series) -> Metric:
    shown = [math.isfinite(value) and abs(value) <= LARGEST for value in series.values]
    return Metric(
        name,
        tuple(compress(series.steps, shown)),
        tuple(compress(series.values, shown)),
        tuple(step for step, kept in zip(series.steps, shown, strict=True) if not kept),
    )
