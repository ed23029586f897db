"""The curves of a run: over its finished rollouts, and over its optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from swe_core.report.finished import RolloutHead
from swe_core.report.training_metrics import Metric, Metrics
from swe_core.rollout.run_directory import RunInfo
from swe_core.rollout.training_records import Evaluation
from swe_core.system.printable import printable

_SECTIONS = {
    "": "Training",
    "rollout": "Rollouts while training",
    "eval": "Evaluations while training",
    "sample": "Samples",
    "ledger": "Token ledger while training",
    "perf": "Speed",
}
_FIRST = (
    "reward", "loss", "grad_norm", "kl", "kl_ref", "entropy", "ratio", "rollout/resolved_rate",
    "sample/staleness_mean", "ledger/trainable_frac", "perf/step_s",
)  # fmt: skip
_SHOWN: tuple[Colour, ...] = ("resolved", "unresolved", "error", "cancelled")
MAX_METRICS = 100
_NOISY = 100
"""Least number of values of a curve over steps that also shows its rolling mean."""


MAX_POINTS = 400
"""Points of a curve that are drawn."""
Colour = Literal["main", "resolved", "unresolved", "error", "cancelled"]
Look = Literal["line", "faint", "dots"]


@dataclass(frozen=True, slots=True)
class Line:
    """Points of a chart, finite numbers."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    colour: Colour = "main"
    look: Look = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, which the page's script draws.

    Args:
        caption: Explains the numbers, below the chart.
        x_label: Of the horizontal axis.
        lines: None of them: there is only the caption.
        share: Whether y is a share, shown from 0 to 100 %.
    """

    title: str
    caption: str
    x_label: str
    lines: tuple[Line, ...]
    share: bool = False

    def drawn(self) -> dict[str, Any]:
        """Return what the script `charts.js` draws, with at most `MAX_POINTS` of each line."""
        lines = []
        for line in self.lines:
            x, y = sample(line.x, line.y) if line.look == "dots" else thin(line.x, line.y)
            lines.append({"x": x, "y": y, "label": line.label, "colour": line.colour, "look": line.look})
        return {"title": printable(self.title), "x_label": self.x_label, "share": self.share, "lines": lines}


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one title."""

    title: str
    charts: tuple[Chart, ...]


def over_rollouts(info: RunInfo, rollouts: Sequence[RolloutHead]) -> tuple[Chart, ...]:
    """Return the charts over the time at which rollouts finished."""
    if not rollouts:
        return ()
    begun = info.created_at.timestamp()
    ordered = sorted(rollouts, key=lambda rollout: rollout.started_at + rollout.seconds)
    finished = [rollout.started_at + rollout.seconds - begun for rollout in ordered]
    unit, seconds = _unit(finished[-1])
    x = [at / seconds for at in finished]
    x_label = f"{unit} since the run began"

    def chart(title: str, value: Callable[[RolloutHead], float | None], *, share: bool = False) -> Chart:
        found = [
            (at, one) for at, rollout in zip(x, ordered, strict=True) if (one := value(rollout)) is not None
        ]
        if not found:
            return Chart(title, "No rollout has a verdict.", x_label, ())
        has, y = zip(*found, strict=True)
        window = _window(len(y))
        mean = Line(has, rolling_mean(y, window))
        caption = f"Line: mean of the last {window}. Overall mean: {_number(math.fsum(y) / len(y), share)}."
        if share:
            return Chart(title, caption, x_label, (mean,), share)
        every = every_of(len(y))
        caption += f" Each dot is a rollout{f', one in {every}' if every > 1 else ''}."
        return Chart(title, caption, x_label, (Line(has, y, look="dots"), mean))

    return (
        chart("Resolved rate", _resolved, share=True),
        _outcomes(ordered, x, x_label),
        chart("Turns", lambda rollout: rollout.turns),
        chart("Completion tokens", lambda rollout: rollout.usage.completion_tokens),
        chart("Prompt tokens", lambda rollout: rollout.usage.prompt_tokens),
        chart("Seconds", lambda rollout: rollout.seconds),
    )


def over_evaluations(evaluations: Sequence[Evaluation]) -> Chart | None:
    """Return the resolved rate on held-out tasks over the steps of the weights; None without one."""
    found = [(one.step, one.resolved_rate) for one in evaluations if one.resolved_rate is not None]
    if not found:
        return None
    steps, rates = zip(*found, strict=True)
    caption = (
        f"First {_number(rates[0], True)}, last {_number(rates[-1], True)}, best {_number(max(rates), True)}."
    )
    lines = (Line(steps, rates), Line(steps, rates, look="dots"))
    return Chart("Resolved rate on held-out tasks", caption, "step", lines, share=True)


def over_steps(metrics: Metrics) -> tuple[tuple[Section, ...], int]:
    """Return the charts over optimizer steps, in a section per prefix of the names, important ones first.

    Returns:
        The sections, and the number of names beyond `MAX_METRICS`, which are left out.
    """
    ordered = sorted(metrics.metrics, key=lambda metric: _place(metric.name))
    charts: dict[str, list[Chart]] = {}
    for metric in ordered[:MAX_METRICS]:
        charts.setdefault(_prefix(metric.name), []).append(_metric(metric))
    sections = tuple(Section(_SECTIONS.get(name, name), tuple(found)) for name, found in charts.items())
    return sections, len(ordered[MAX_METRICS:])


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and the up to `window - 1` before it."""
    sums = [0.0, *accumulate(values)]
    return [(sums[end] - sums[max(end - window, 0)]) / min(end, window) for end in range(1, len(values) + 1)]


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most `MAX_POINTS` of the points, in order: the first, the last, and the extremes between.

    The lowest and the highest point of each stretch remain, so that a line loses no spike.
    """
    if len(y) <= MAX_POINTS:
        return list(x), list(y)
    stretches, inner = MAX_POINTS // 2 - 1, len(y) - 2
    kept = {0, len(y) - 1}
    for number in range(stretches):
        stretch = range(1 + inner * number // stretches, 1 + inner * (number + 1) // stretches)
        kept |= {min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)}
    order = sorted(kept)
    return [x[place] for place in order], [y[place] for place in order]


def sample(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most `MAX_POINTS` of the points, in order, one in every `every_of`."""
    every = every_of(len(y))
    return list(x[::every]), list(y[::every])


def every_of(count: int) -> int:
    """Return the stride of `sample`."""
    return max(1, math.ceil(count / MAX_POINTS))


def _outcomes(ordered: Sequence[RolloutHead], x: Sequence[float], x_label: str) -> Chart:
    lines = []
    for outcome in _SHOWN:
        counts = list(accumulate(float(rollout.outcome == outcome) for rollout in ordered))
        if counts[-1]:
            lines.append(Line(x, counts, label=outcome, colour=outcome))
    return Chart("Outcomes", "Rollouts that have finished.", x_label, tuple(lines))


def _resolved(rollout: RolloutHead) -> float | None:
    return float(rollout.outcome == "resolved") if rollout.outcome in ("resolved", "unresolved") else None


def _metric(metric: Metric) -> Chart:
    captions, lines = [], []
    steps, values = metric.steps, metric.values
    if values:
        captions.append(
            f"last {_number(values[-1])}, lowest {_number(min(values))}, highest {_number(max(values))}"
        )
        lines.append(Line(steps, values))
    if len(values) >= _NOISY:
        window = max(len(values) // 50, 5)
        captions.append(f"the bold line is the mean of the last {window}")
        lines = [Line(steps, values, look="faint"), Line(steps, rolling_mean(values, window))]
    if count := len(metric.not_finite):
        captions.append(
            f"not finite at {count:,} step{'s' * (count > 1)}, first at step {metric.not_finite[0]:,}"
        )
    return Chart(metric.name, "; ".join(captions), "step", tuple(lines))


def _place(name: str) -> tuple[int, str, int, str]:
    prefix = _prefix(name)
    sections = list(_SECTIONS)
    section = sections.index(prefix) if prefix in sections else len(sections)
    return section, prefix, _FIRST.index(name) if name in _FIRST else len(_FIRST), name


def _prefix(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _window(count: int) -> int:
    """Return the width of the rolling mean: a tenth of the rollouts, from 5 to 100."""
    return min(max(count // 10, 5), 100)


def _unit(longest: float) -> tuple[str, float]:
    return ("seconds", 1) if longest < 180 else ("minutes", 60) if longest < 3 * 3600 else ("hours", 3600)


def _number(value: float, share: bool = False) -> str:
    if share:
        return f"{value:.1%}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
