"""The chains of a rollout: its turns in lanes, why rows fork, and where two turns differ first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swe_core.view.message_data import message_data
from swe_core.view.pages import tokens
from swe_core.view.render import Page
from swe_core.view.site import Site
from swe_core.view.token_data import tries_of

paths = tokens.paths


def page(site: Site, query: Mapping[str, str], name: str, rollout_id: str) -> Page:
    """Return the page of the chains of a rollout. What its URL asks for is read in the browser."""
    run = site.run(name)
    head = run.head(rollout_id)
    tried = tries_of(run, rollout_id, head)
    values = tokens.values(run, rollout_id, head, tried)
    messages: list[dict[str, Any]] = []
    for _, turns, _ in tried:
        messages += message_data(turns, len(messages))
    return Page("chains.html", {"here": "chains", "messages": messages, **values})
