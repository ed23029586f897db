"""The URLs of several servers."""

from __future__ import annotations

import pytest

from swe_core.errors import ConfigError
from swe_trainer_trl.server.urls import server_urls


def test_urls_are_separated_by_commas_and_have_no_path() -> None:
    assert server_urls("http://a:1/v1, http://b:2/ ,") == ["http://a:1", "http://b:2"]
    assert server_urls("") == []


def test_wrong_urls_are_a_sentence() -> None:
    for text, says in (
        ("http://a:1,http://a:1/v1", "--engine-url names 'http://a:1' twice: name each server once"),
        ("http://a:1 http://b:2", "is not a URL|is not a base URL"),
        ("http://a:1,b:2", "the engine URL 'b:2' is not a base URL"),
    ):
        with pytest.raises(ConfigError, match=says):
            server_urls(text)
