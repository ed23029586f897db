"""Render pages: the templates, what they may call, and relative links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from swe_core.system.printable import printable

ASSETS = (
    "icon.svg",
    "view.css",
    "view.js",
    "grid.js",
    "token_text.js",
    "token_rows.js",
    "token_canvas.js",
    "tokens.js",
    "chains.js",
    "charts.js",
    "rollout.js",
    "search.js",
    "ledger.js",
)
"""Files that pages load."""
MAX_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows.

    Args:
        template: File name of its template.
        values: What the template gets, or a function that makes it: it is not called for a page whose version
            the reader has.
        version: Changes whenever the page would; empty for a page that does not load itself again.
    """

    template: str
    values: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True)
class Links:
    """Relative links, so that a site works below any address and from a folder.

    Args:
        depth: Parts of the page's own path.
        file: Name that ends a link to a page: empty on a server, `index.html` in a folder.
    """

    depth: int
    file: str = ""

    def folder(self, *parts: str) -> str:
        """Return the link to the folder of a page, to which a script adds parts of a path."""
        path = "".join(f"{quote(part, safe='')}/" for part in parts)
        return f"{'../' * self.depth or './'}{path}"

    def page(self, *parts: str, **query: object) -> str:
        """Return the link to a page: parts of its path, and what its URL asks for."""
        asked = {name: value for name, value in query.items() if value is not None}
        return f"{self.folder(*parts)}{self.file}{'?' + urlencode(asked) if asked else ''}"

    def asset(self, name: str) -> str:
        """Return the link to a file of `ASSETS`."""
        return f"{'../' * self.depth}assets/{name}"


def render(page: Page, links: Links, *, live: bool) -> str:
    """Return the HTML of a page.

    Args:
        live: Whether it loads itself again when its version changes.
    """
    values = page.values() if callable(page.values) else page.values
    text: str = (
        _environment()
        .get_template(page.template)
        .render(**values, link=links, live=live and bool(page.version), version=page.version)
    )
    return text


def data(value: object) -> Markup:
    """Return `value` as JSON for a `<script type="application/json">`: nothing in it ends the element."""
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def duration(seconds: float | None) -> str:
    """Return a duration for people: `0.4 s`, `12 min`, `3 h 05 min`."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60:02} min"


def clock(seconds: float) -> str:
    """Return a time in a rollout: `0:07`, `12:05`, `1:02:03`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def per_mille(part: float, whole: float) -> str:
    """Return a part of a drawing that is 1000 wide."""
    return f"{1000 * part / whole:.2f}"


def cut(text: str, width: int = MAX_TEXT) -> str:
    """Return `text` of at most `width` characters."""
    return text if len(text) <= width else f"{text[:width]}…"


def count(number: int, one: str, many: str = "") -> str:
    """Return `1 rollout`, `2 rollouts`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("swe_core.view"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., object]] = {
        "data": data,
        "duration": duration,
        "clock": clock,
        "per_mille": per_mille,
        "cut": cut,
        "count": count,
    }
    environment.filters |= filters
    return environment


def _finalized(value: object) -> object:
    """Return a value for the page. Foreign text goes through `printable`."""
    return printable(value) if type(value) is str else value
