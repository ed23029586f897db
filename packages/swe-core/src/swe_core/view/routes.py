"""Routes: from the path of a URL to a page, and all paths of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from swe_core.view.pages import chains, compare, group, ledger, rollout, run, runs, search, tokens
from swe_core.view.render import Page
from swe_core.view.site import NotShown, Site

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of page.

    Args:
        pattern: Parts of its path; one in braces stands for any text, which `page` gets by that name.
        page: Makes the page from the site, what its URL asks for (`query`), and the parts of its path.
        paths: Yields the parts in braces of each page of a site that a static copy has.
    """

    pattern: tuple[str, ...]
    page: Callable[..., Page]
    paths: Callable[[Site], Iterator[tuple[str, ...]]]

    def match(self, parts: tuple[str, ...]) -> dict[str, str] | None:
        """Return the parts in braces of a path by their names; None if the path is not of this kind."""
        if len(parts) != len(self.pattern):
            return None
        found = {}
        for wanted, part in zip(self.pattern, parts, strict=True):
            if wanted.startswith("{"):
                found[wanted[1:-1]] = part
            elif wanted != part:
                return None
        return found

    def fill(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return the parts of the path with `values` for those in braces."""
        rest = iter(values)
        return tuple(next(rest) if part.startswith("{") else part for part in self.pattern)


ROUTES = (
    Route((), runs.page, runs.paths),
    Route(("run", "{name}"), run.page, run.paths),
    Route(("search",), search.page, search.paths),
    Route(("compare", "{first}", "{second}"), compare.page, compare.paths),
    Route(("run", "{name}", "group", "{key}"), group.page, group.paths),
    Route(("run", "{name}", "ledger"), ledger.page, ledger.paths),
    Route(("run", "{name}", "rollout", "{rollout_id}"), rollout.page, rollout.paths),
    Route(
        ("run", "{name}", "rollout", "{rollout_id}", "ledger"),
        ledger.page_of_rollout,
        ledger.paths_of_rollouts,
    ),
    Route(
        ("run", "{name}", "rollout", "{rollout_id}", "try", "{folder}"),
        rollout.page_of_try,
        rollout.paths_of_tries,
    ),
    Route(("run", "{name}", "rollout", "{rollout_id}", "tokens"), tokens.page, tokens.paths),
    Route(("run", "{name}", "rollout", "{rollout_id}", "chains"), chains.page, chains.paths),
)


def page_at(site: Site, parts: tuple[str, ...], query: Query) -> Page:
    """Return the page of a path.

    Raises:
        NotShown: There is none.
        UsageError: What it shows is damaged.
    """
    for route in ROUTES:
        found = route.match(parts)
        if found is not None:
            return route.page(site, query, **found)
    raise NotShown("There is no such page.")


def parts_of(path: str) -> tuple[str, ...]:
    """Return the decoded parts of a URL's path."""
    return tuple(unquote(part) for part in path.strip("/").split("/") if part)


def all_paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the parts of the path of each page that a static copy has."""
    for route in ROUTES:
        for values in route.paths(site):
            yield route.fill(values)
