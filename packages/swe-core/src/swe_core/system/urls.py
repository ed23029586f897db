"""Validate URLs from the user."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from swe_core.errors import ConfigError

_BETWEEN = re.compile(r",(?=\s*https?://)")
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*")


def base_url(text: str) -> str:
    """Return a provider's base URL: http or https, a host, no query, no trailing slash.

    Raises:
        ConfigError: `text` is no such URL. The message repeats no user, password or query.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises where it is no number
    except ValueError:  # whose text may quote a password
        raise ConfigError("the engine URL is not a URL: pass http(s)://HOST[:PORT]/v1") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "the engine URL has a user or password: leave them out; the key comes from the environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        shown = without_secrets(text)
        raise ConfigError(
            f"the engine URL {shown!r} is not a base URL: pass http(s)://HOST[:PORT]/v1, no query"
        )
    return text.rstrip("/")


def without_secrets(urls: str) -> str:
    """Return a URL, or several with commas between them, without user, password, query and fragment."""
    return ",".join(map(_without, _BETWEEN.split(urls)))


def _without(url: str) -> str:
    scheme, _, rest = url.partition("://")
    begins = f"{scheme}://" if _SCHEME.fullmatch(scheme.strip()) and rest else ""
    host = (rest if begins else url).rpartition("@")[2]
    return begins + re.split("[?#;]", host, maxsplit=1)[0]
