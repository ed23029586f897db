"""The HTML page of a run: render the template and write it as one file."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from swe_core.api.records import Rollout
from swe_core.errors import UsageError
from swe_core.report.facts import CAUSES, facts_of, why
from swe_core.report.training_metrics import read_metrics
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.files import write_out
from swe_core.system.printable import printable

if TYPE_CHECKING:
    from swe_core.report.token_audit import TokenAudit

MAX_ROWS = 500
_MAX_LINES = 20
_MAX_TEXT = 500
_MAX_SETTINGS = 20_000


def write_page(path: Path, run: RunDirectory, rollouts: Sequence[Rollout], tokens: TokenAudit | None) -> None:
    """Write the page of `run` to `path`, atomically; an existing file is replaced.

    Raises:
        UsageError: `path` cannot be written, or the libraries of `swe-core[report]` are not installed.
    """
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"--html needs the package {missing[0]!r}: pip install 'swe-core[report]'")
    write_out(path, page(run, rollouts, tokens).encode(errors="replace"), "the page", "--html")


def page(run: RunDirectory, rollouts: Sequence[Rollout], tokens: TokenAudit | None) -> str:
    """Return the page of `run`: HTML without external resources.

    Args:
        rollouts: Its finished rollouts, in the order in which they finished.
        tokens: What its ledgers say; None where its engine does not own the tokens.

    Raises:
        UsageError: Its `metrics.jsonl` cannot be read.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from swe_core.report.html.charts import Chart, svg
    from swe_core.report.html.curves import over_rollouts, over_steps

    drawn = 0

    def draw(chart: Chart) -> Markup:
        nonlocal drawn
        drawn += 1
        return Markup(svg(chart, f"chart-{drawn}"))  # ElementTree has escaped its text

    environment = Environment(
        loader=PackageLoader("swe_core.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": _duration, "cut": _cut, "draw": draw}
    metrics = read_metrics(run.path)
    sections, metrics_left_out = over_steps(metrics) if metrics else ((), 0)
    rows = sorted(rollouts[-MAX_ROWS:], key=lambda rollout: (rollout.task_id, rollout.attempt))
    settings = orjson.dumps(run.info.settings, option=orjson.OPT_INDENT_2).decode()
    text: str = environment.get_template("report.html").render(
        name=run.path.resolve().name,
        info=run.info,
        facts=facts_of(rollouts),
        used={
            role: sorted({getattr(rollout, role) for rollout in rollouts})
            for role in ("agent", "sandbox", "engine", "model")
        },
        settings=settings if len(settings) <= _MAX_SETTINGS else f"{settings[:_MAX_SETTINGS]}\n…",
        tokens=tokens,
        causes=CAUSES,
        charts=over_rollouts(run.info, rollouts),
        metrics=metrics,
        sections=sections,
        metrics_left_out=metrics_left_out,
        rows=[(rollout, why(rollout)) for rollout in rows],
        rows_left_out=len(rollouts) - len(rows),
        max_lines=_MAX_LINES,
    )
    return text


def _finalized(value: object) -> object:
    """Return a value for the page; foreign text goes through `printable`."""
    return printable(value) if type(value) is str else value


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60:02} min"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
