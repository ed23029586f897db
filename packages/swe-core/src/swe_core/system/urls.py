"""Validate URLs from the user."""

from __future__ import annotations

from urllib.parse import urlsplit

from swe_core.errors import ConfigError


def base_url(text: str) -> str:
    """Return a provider's base URL: http or https, a host, no query, no trailing slash.

    Raises:
        ConfigError: `text` is no such URL. The message does not repeat a user or password.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises where it is no number
    except ValueError as error:
        raise ConfigError(f"the engine URL is not a URL ({error}): pass http(s)://HOST[:PORT]/v1") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "the engine URL has a user or password: leave them out; the key comes from the environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"the engine URL {text!r} is not a base URL: pass http(s)://HOST[:PORT]/v1, no query"
        )
    return text.rstrip("/")
