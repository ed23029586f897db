"""The page of a run: its numbers, the grid of tasks and attempts, errors, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from swe_core.api.records import Phases
from swe_core.report.facts import why
from swe_core.report.finished import RolloutHead
from swe_core.rollout.run_list import State
from swe_core.system.natural_order import natural_key
from swe_core.system.printable import printable
from swe_core.view.pages.compare import comparable
from swe_core.view.render import Page, duration
from swe_core.view.site import ShownRun, Site
from swe_core.view.staleness import training_facts
from swe_core.view.summary_page import summary_of

MAX_LANES = 40
"""Slowest rollouts whose time is drawn."""
_MAX_REASON = 200


def page(site: Site, query: Mapping[str, str], name: str) -> Page:
    """Return the page of the run `name`."""
    run = site.run(name)
    unfinished, state = run.unfinished(), run.state()
    version = f"{run.heads.version}:{run.training.version}:{state}:{' '.join(unfinished)}"
    return Page("run.html", partial(_values, site, run, state, unfinished), version)


def _values(site: Site, run: ShownRun, state: State, unfinished: Sequence[str]) -> dict[str, Any]:
    heads = list(run.heads.all())
    rows, reasons = _rows(run, unfinished if state == "running" else ())
    return {
        "title": run.name,
        "run": run,
        "state": state,
        **summary_of(run.directory, heads),
        "rows": rows,
        "reasons": reasons,
        "lanes": lanes(sorted(heads, key=lambda head: -head.seconds)[:MAX_LANES]),
        "tokens": any(head.ledger for head in heads),
        "others": comparable(site, run.name),
        "training": training_facts(run, heads),
    }


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the name of each run."""
    for name in site.runs:
        yield (name,)


def lanes(heads: Sequence[RolloutHead]) -> list[dict[str, Any]]:
    """Return a lane per rollout: its phases as `(name, start, seconds)`, in seconds of its own time.

    Phases follow each other. What is left at the end is time between phases, and of lost tries.
    """
    longest = max((head.seconds for head in heads), default=0.0)
    found = []
    for head in heads:
        parts, at = [], 0.0
        for phase in Phases.model_fields:
            seconds: float | None = getattr(head.phases, phase)
            if seconds is not None:
                parts.append((phase, at, seconds))
                at += seconds
        if head.seconds > at:
            parts.append(("other", at, head.seconds - at))
        found.append({"head": head, "parts": parts, "longest": longest or 1.0})
    return found


def _rows(run: ShownRun, running: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the script `grid.js` draws: a row for each group, and the reasons that its cells number.

    A cell is the id, the outcome and the number of the reason of an attempt, and its printable id if another.
    """
    reasons = {"": 0}
    rows = []
    for group, heads in sorted(run.groups().items(), key=lambda item: natural_key(item[0])):
        verdicts = [head for head in heads if head.reward is not None]
        seconds = sum(head.seconds for head in heads) / len(heads)
        rows.append(
            {
                "group": printable(group),
                "task": printable(heads[0].task_id),
                "cells": [
                    (head.id, head.outcome, reasons.setdefault(_reason(head), len(reasons)), *_shown(head.id))
                    for head in sorted(heads, key=lambda head: head.attempt)
                ],
                "resolved": sum(head.outcome == "resolved" for head in verdicts),
                "verdicts": len(verdicts),
                "seconds": seconds,
                "time": duration(seconds),
                "mixed": len({head.reward for head in verdicts}) > 1,
            }
        )
    for id_ in running:
        cells = [(id_, "running", 0)]
        none = {"resolved": 0, "verdicts": 0, "seconds": 0, "time": "", "mixed": False}
        rows.append({"group": id_, "task": id_, "cells": cells, **none})
    return rows, list(reasons)


def _shown(name: str) -> tuple[str, ...]:
    shown = printable(name)
    return () if shown == name else (shown,)


def _reason(head: RolloutHead) -> str:
    return printable(why(head)[:_MAX_REASON])
