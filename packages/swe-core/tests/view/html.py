"""Pages as text, for tests of what is on them."""

from __future__ import annotations

import re

from swe_core.view.render import Links, render
from swe_core.view.routes import page_at
from swe_core.view.site import Site

_TAG = re.compile(r"<[^>]*>")


def html(site: Site, *parts: str, **query: str) -> str:
    """Return the HTML of the page at a path, as the server sends it."""
    return render(page_at(site, parts, query), Links(len(parts)), live=site.live)


def words(text: str) -> str:
    """Return the text of HTML, with one blank between words."""
    return " ".join(_TAG.sub(" ", text).split())
