"""The curves of a run: over its finished rollouts, and over its optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swe_core.api.records import Rollout
from swe_core.report.html.charts import Chart, Colour, Line, every_of
from swe_core.report.training_metrics import Metric, Metrics
from swe_core.rollout.run_directory import RunInfo

_SECTIONS = {
    "": "Training",
    "rollout": "Rollouts while training",
    "sample": "Samples",
    "ledger": "Token ledger while training",
    "perf": "Speed",
}
_FIRST = (
    "reward", "loss", "grad_norm", "kl", "entropy", "ratio", "rollout/resolved_rate", "sample/staleness_mean",
    "ledger/trainable_frac", "perf/step_s",
)  # fmt: skip
_SHOWN: tuple[Colour, ...] = ("resolved", "unresolved", "error", "cancelled")
MAX_METRICS = 100
_NOISY = 100
"""Least number of values of a curve over steps that also shows its rolling mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Charts under one title."""

    title: str
    charts: tuple[Chart, ...]


def over_rollouts(info: RunInfo, rollouts: Sequence[Rollout]) -> tuple[Chart, ...]:
    """Return the charts over the time at which rollouts finished."""
    if not rollouts:
        return ()
    begun = info.created_at.timestamp()
    finished = [rollout.started_at.timestamp() + rollout.seconds - begun for rollout in rollouts]
    order = np.argsort(finished, kind="stable")
    ordered = [rollouts[index] for index in order]
    unit, seconds = _unit(max(finished))
    x = np.array(finished)[order] / seconds
    x_label = f"{unit} since the run began"

    def chart(title: str, value: Callable[[Rollout], float | None], *, share: bool = False) -> Chart:
        values = [value(rollout) for rollout in ordered]
        has = np.array([one is not None for one in values])
        y = np.array([one for one in values if one is not None], np.float64)
        window = _window(len(y))
        if not len(y):
            return Chart(title, "No rollout has a verdict.", x_label, ())
        mean = Line(x[has], rolling_mean(y, window))
        caption = f"The line is the mean of the last {window}; over all, {_number(y.mean(), share)}."
        if share:
            return Chart(title, caption, x_label, (mean,), share)
        every = every_of(len(y))
        caption += f" Each dot is a rollout{f', one in {every}' if every > 1 else ''}."
        return Chart(title, caption, x_label, (Line(x[has], y, look="dots"), mean))

    return (
        chart("Resolved rate", _resolved, share=True),
        _outcomes(ordered, x, x_label),
        chart("Turns", lambda rollout: rollout.turns),
        chart("Completion tokens", lambda rollout: rollout.usage.completion_tokens),
        chart("Prompt tokens", lambda rollout: rollout.usage.prompt_tokens),
        chart("Seconds", lambda rollout: rollout.seconds),
    )


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


def rolling_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of each value and the up to `window - 1` before it; [N] float64 like `values`."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _outcomes(ordered: Sequence[Rollout], x: NDArray[np.float64], x_label: str) -> Chart:
    lines = []
    for outcome in _SHOWN:
        counts = np.cumsum([rollout.outcome == outcome for rollout in ordered]).astype(np.float64)
        if counts[-1]:
            lines.append(Line(x, counts, label=outcome, colour=outcome))
    return Chart("Outcomes", "Rollouts that have finished.", x_label, tuple(lines))


def _resolved(rollout: Rollout) -> float | None:
    return float(rollout.outcome == "resolved") if rollout.outcome in ("resolved", "unresolved") else None


def _metric(metric: Metric) -> Chart:
    captions, lines = [], []
    steps, values = metric.steps, metric.values
    if len(values):
        captions.append(
            f"last {_number(values[-1])}, lowest {_number(values.min())}, highest {_number(values.max())}"
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
