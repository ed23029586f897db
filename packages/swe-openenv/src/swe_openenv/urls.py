"""Check the address of an OpenEnv server that a user wrote."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")  # a name or IPv4 address; an IPv6 address
_EXPECTED = "expected http(s)://HOST[:PORT]"


def server_url(text: str) -> str:
    """Return the address of a server, with a path or none, and without a slash at its end.

    Every HTTP and WebSocket client can take what this returns: later, only the server itself can fail.

    Args:
        text: Such as `http://127.0.0.1:8000` or `https://HOST/PATH/`.

    Raises:
        ValueError: It is no such address. The sentence does not repeat it, since it may hold a password.
    """
    if not text.isprintable() or any(letter.isspace() for letter in text):
        raise ValueError(f"{_EXPECTED}, without blanks and line breaks")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(f"{_EXPECTED}: its host is no name and no address") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("expected no user and no password")
    if parts.scheme not in ("http", "https") or not parts.hostname or "?" in text or "#" in text:
        raise ValueError(_EXPECTED)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"{_EXPECTED}: its port is no number from 1 to 65535")
    try:
        host = parts.hostname.encode("idna").decode()  # as a resolver asks for it
    except UnicodeError:
        host = ""
    if not _HOST.fullmatch(host):
        raise ValueError(f"{_EXPECTED}: its host is no name and no address")
    return parts.scheme + text[len(parts.scheme) :].rstrip("/")
