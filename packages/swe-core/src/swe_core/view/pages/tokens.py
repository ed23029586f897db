"""The tokens of a rollout: each row as it is trained, and what of it is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swe_core.report.finished import RolloutHead
from swe_core.view.render import Page
from swe_core.view.site import NotShown, ShownRun, Site
from swe_core.view.token_data import Tries, token_data, tries_of


def page(site: Site, query: Mapping[str, str], name: str, rollout_id: str) -> Page:
    """Return the page of the tokens of a rollout. What its URL asks for is read in the browser."""
    run = site.run(name)
    head = run.head(rollout_id)
    tried = tries_of(run, rollout_id, head)
    return Page("tokens.html", {"here": "tokens", **values(run, rollout_id, head, tried)})


def values(run: ShownRun, rollout_id: str, head: RolloutHead | None, tried: Tries) -> dict[str, Any]:
    """Return what the templates of tokens and chains get.

    Raises:
        NotShown: The rollout has no tokens.
        UsageError: Its records are damaged.
    """
    if not any(turn.tokens is not None for _, turns, _ in tried for turn in turns):
        so_far = " so far" if head is None else ""
        raise NotShown(
            f"The rollout {rollout_id!r} has no tokens{so_far}: only an engine that owns them, such as vllm, "
            "records them."
        )
    return {"run": run, "id": rollout_id, "head": head, "data": token_data(run, rollout_id, tried)}


def paths(site: Site) -> Iterator[tuple[str, ...]]:
    """Yield the run and the id of each rollout with tokens."""
    for name in site.runs:
        for head in site.run(name).heads.all():
            if head.ledger is not None:
                yield name, head.id
