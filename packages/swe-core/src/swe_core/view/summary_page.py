"""The summary of a run as one file: `swe-core report --html`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from markupsafe import Markup

from swe_core.report.facts import CAUSES, facts_of, why, without_evaluations
from swe_core.report.finished import RolloutHead
from swe_core.report.training_metrics import read_metrics
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import read_evaluations
from swe_core.system.files import write_out
from swe_core.view.curves import over_evaluations, over_rollouts, over_steps
from swe_core.view.heads import Heads
from swe_core.view.render import Links, Page, render

if TYPE_CHECKING:
    from swe_core.report.token_audit import TokenAudit
    from swe_core.rollout.training_account import TrainingAccount

MAX_ROWS = 500
MAX_LINES = 20
_MAX_SETTINGS = 20_000


def write_page(
    path: Path, run: RunDirectory, tokens: TokenAudit | None, training: TrainingAccount | None = None
) -> None:
    """Write the page of `run` to `path`, atomically; an existing file is replaced.

    Args:
        tokens: What its ledgers say; None where its engine does not own the tokens.
        training: What became of the trainable tokens; None for an evaluation.

    Raises:
        UsageError: `path` cannot be written, or records of the run cannot be read.
    """
    text = page(run, tokens, training)
    write_out(path, text.encode(errors="replace"), "the page", "--html")


def summary_of(run: RunDirectory, heads: list[RolloutHead]) -> Mapping[str, Any]:
    """Return what the templates of a summary get.

    Raises:
        UsageError: Its `metrics.jsonl` cannot be read.
    """
    metrics, evaluations = read_metrics(run.path), read_evaluations(run.path)
    counting = without_evaluations(heads)
    sections, metrics_left_out = over_steps(metrics) if metrics else ((), 0)
    settings = orjson.dumps(run.info.settings, option=orjson.OPT_INDENT_2).decode()
    return {
        "info": run.info,
        "facts": facts_of(counting),
        "used": {
            role: sorted({value for head in heads if (value := getattr(head, role))})
            for role in ("agent", "sandbox", "engine", "model")
        },
        "settings": settings if len(settings) <= _MAX_SETTINGS else f"{settings[:_MAX_SETTINGS]}\n…",
        "causes": CAUSES,
        "charts": over_rollouts(run.info, counting),
        "evaluations": evaluations,
        "evaluation_chart": over_evaluations(evaluations),
        "metrics": metrics,
        "sections": sections,
        "metrics_left_out": metrics_left_out,
        "max_lines": MAX_LINES,
    }


def page(run: RunDirectory, tokens: TokenAudit | None, training: TrainingAccount | None = None) -> str:
    """Return the page of `run`: HTML without external resources. The arguments are those of `write_page`."""
    read = Heads(run.path)
    read.refresh()
    heads = list(read.all())
    rows = sorted(heads[-MAX_ROWS:], key=lambda head: (head.task_id, head.attempt))
    style, script = _asset("view.css"), _asset("charts.js")
    values = {
        **summary_of(run, heads),
        "name": run.path.resolve().name,
        "tokens": tokens,
        "training": training,
        "rows": [(head, why(head)) for head in rows],
        "rows_left_out": len(heads) - len(rows),
        "style": Markup(style),
        "script": Markup(script),
        "policy": f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}",
    }
    return render(Page("report.html", values), Links(0), live=False)


def _asset(name: str) -> str:
    return (files("swe_core.view") / "assets" / name).read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    """Return the source of a Content-Security-Policy for an element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
