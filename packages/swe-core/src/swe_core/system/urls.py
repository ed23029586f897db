"""URLs that a user gives."""

from __future__ import annotations

from urllib.parse import urlsplit

from swe_core.errors import ConfigError


def base_url(text: str) -> str:
    """A provider's base URL as it is used: http or https, a host, no query, no trailing slash.

    Raises:
        ConfigError: It is something else; a user or password in it is refused and not repeated.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises when it is no number
    except ValueError as error:
        raise ConfigError(f"the engine URL is not a URL ({error}): pass http(s)://HOST[:PORT]/v1") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "the engine URL holds a user or password: leave them out, the key is read from the environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"the engine URL {text!r} is not a base URL: pass http(s)://HOST[:PORT]/v1, no query"
        )
    return text.rstrip("/")
