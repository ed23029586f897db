"""The URLs of the policy's servers."""

from __future__ import annotations

from collections.abc import Sequence

from swe_core.errors import ConfigError
from swe_core.system.urls import base_url


def server_urls(text: str) -> Sequence[str]:
    """Return the base URLs, without `/v1`, in `text`, which separates them by commas.

    Raises:
        ConfigError: A URL is invalid, or is there twice.
    """
    urls = [base_url(url.strip()).removesuffix("/v1") for url in text.split(",") if url.strip()]
    for place, url in enumerate(urls):
        if url in urls[:place]:
            raise ConfigError(f"--engine-url names {url!r} twice: name each server once")
    return urls
