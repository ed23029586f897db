"""The addresses of servers that users write."""

from __future__ import annotations

import pytest

from swe_openenv.urls import server_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://my-env.example.org/", "https://my-env.example.org"),
        ("http://host/some/path//", "http://host/some/path"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://my_env:65535", "http://my_env:65535"),
        ("HTTP://Host", "http://Host"),
    ],
)
def test_addresses_of_servers(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "HOST"),
        ("localhost:8000", "HOST"),
        ("127.0.0.1:9", "HOST"),
        ("ftp://host", "HOST"),
        ("http://", "HOST"),
        ("http://:80", "HOST"),
        ("http://host?", "HOST"),
        ("http://host?a=b", "HOST"),
        ("http://host#a", "HOST"),
        ("http://127.0.0.1:abc", "port"),
        ("http://127.0.0.1:99999", "port"),
        ("http://127.0.0.1:-1", "port"),
        ("http://127.0.0.1:0", "port"),
        ("http://127.0.0.1:", "port"),
        ("http://a..b", "host"),
        ("http://.", "host"),
        ("http://" + "a" * 64, "host"),
        ("http://a%20b", "host"),
        ("http://a\\b", "host"),
        ("http://[::1", "host"),
        ("http://[x]", "host"),
        ("http://127.0.0.1:9 x", "blanks"),
        (" http://host", "blanks"),
        ("http://ho\tst", "blanks"),
        ("http://host\n", "blanks"),
        ("http://ho\0st", "blanks"),
        ("http://ho\udcffst", "blanks"),
    ],
    ids=ascii,
)
def test_wrong_addresses_are_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^expected .*{why}"):
        server_url(text)


@pytest.mark.parametrize(
    "text", ["http://u:geheim@host", "http://u:geheim", "http://u:geheim@", "http://u:geheim @host"]
)
def test_passwords_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        server_url(text)
    assert "geheim" not in str(caught.value)
