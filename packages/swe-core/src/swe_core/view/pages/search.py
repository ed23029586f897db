"""The page of a search over transcripts and patches of all runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from swe_core.view.render import Page
from swe_core.view.searching import MAX_QUERY, PARTS, search
from swe_core.view.site import Site


def page(site: Site, query: Mapping[str, str]) -> Page:
    """Return what a search found. Its URL asks for `q`, `in` (parts, comma-separated), `run` and `from`."""
    text = query.get("q", "")[:MAX_QUERY]
    parts = [part for part in query.get("in", "").split(",") if part in PARTS] or list(PARTS)
    run = query.get("run") or None
    place = query.get("from", "0")
    results = None
    if text.strip() and site.live:
        results = search(site, text, parts, run, int(place) if place.isdecimal() and len(place) < 10 else 0)
    values = {
        "title": f"Search: {text}" if text else "Search",
        "text": text,
        "parts": ",".join(parts),
        "run": run,
        "runs": list(site.runs),
        "results": results,
    }
    return Page("search.html", values)


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the one path of the search."""
    yield ()
