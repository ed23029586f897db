"""The list of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from swe_core.errors import UsageError
from swe_core.rollout.run_list import run_state
from swe_core.view.pages.compare import comparable
from swe_core.view.render import Page
from swe_core.view.run_lines import RunLine
from swe_core.view.site import ShownRun, Site


def page(site: Site, query: Mapping[str, str]) -> Page:
    """Return the list of the runs, the newest first."""
    runs = sorted(site.runs.values(), key=_created, reverse=True)
    rows = [_row(run) for run in runs]
    version = " ".join(f"{row['run']}:{row['signature']}:{row['state']}" for row in rows)
    return Page(
        "runs.html",
        {"title": "Runs", "rows": rows, "comparable": len(rows) > 1 and comparable(site, runs[0].name)},
        version,
    )


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the one path of the list."""
    yield ()


def _created(run: ShownRun) -> datetime:
    """Return when a run was created; a time without a zone is taken as UTC."""
    found = run.directory.info.created_at
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _row(run: ShownRun) -> dict[str, object]:
    try:
        line, problem = run.line(), ""
    except UsageError as error:  # the other runs can still be read
        line, problem = RunLine.of(()), str(error)
    info = run.directory.info
    return {
        "run": run.name,
        "created": _created(run),
        "planned": info.planned,
        "line": line,
        "state": run_state(run.path, line.lasting, info.planned),
        "problem": problem,
        "signature": run.heads.signature(),
    }
