"""Whether an engine's URL answers, and which models it serves."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx

from swe_core.api.checks import Finding
from swe_core.errors import sentence
from swe_core.system.urls import without_secrets

_SECONDS = 8.0
_SHOWN = 5
"""Models that are named."""


def endpoint(url: str, key_variable: str | None, key: str | None) -> Finding:
    """Ask an OpenAI-compatible server at `url` for its models.

    Args:
        url: With or without `/v1` at its end.
        key_variable: The environment variable that holds the key, for the remedy; None where none is known.
        key: The key, which is sent and never shown.
    """
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # what httpx would say of it may have a password in it
        sound = False
    if not sound:
        return Finding("missing", "is no http or https URL", "Give --engine-url http://HOST:PORT/v1.")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    where = without_secrets(url)
    try:
        with httpx.Client(timeout=_SECONDS, headers=headers, follow_redirects=False) as client:
            base = url.rstrip("/")
            reply = client.get(f"{base}/models")
            if reply.status_code == httpx.codes.NOT_FOUND and not base.endswith("/v1"):
                reply = client.get(f"{base}/v1/models")
    except httpx.HTTPError as error:
        remedy = "Start the server, or check its address and your proxy settings."
        return Finding("missing", f"{where} does not answer: {sentence(error)}", remedy)
    if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        remedy = f"Set {key_variable} to a key that it takes." if key_variable else "Give it a key."
        return Finding("missing", f"{where} answers, and wants {'another' if key else 'a'} key", remedy)
    names = _models(reply)
    if names is None:
        remedy = "Check that the URL is the base of an OpenAI-compatible API, which mostly ends in /v1."
        text = f"{where} answers with status {reply.status_code} and no list of models"
        return Finding("missing", text, remedy)
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    served = ", ".join(map(repr, names[:_SHOWN])) or "no model"
    return Finding("ok", f"{where} serves {served}{more}")


def _models(reply: httpx.Response) -> list[str] | None:
    """The ids of `{"data": [{"id": …}, …]}`; None where it is something else."""
    try:
        body: Any = reply.json()
        return [str(card["id"]) for card in body["data"]] if reply.is_success else None
    except (ValueError, KeyError, TypeError):
        return None
