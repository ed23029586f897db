"""Redactor: every known secret is found, whole or torn, whatever it begins with."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from swe_core.redact import MARK, Redactor

# Few letters, so that secrets begin alike, overlap, and stand in texts by chance.
LETTERS = st.text("abé", max_size=20)
SECRETS = st.lists(st.text("abé", min_size=8, max_size=12), max_size=4)


def redactor_of(secrets: list[str]) -> Redactor:
    redactor = Redactor()
    for secret in secrets:
        redactor.add(secret)
    return redactor


@given(SECRETS, st.lists(LETTERS), st.randoms())
def test_no_secret_is_left(secrets: list[str], texts: list[str], random: Random) -> None:
    pieces = [*texts, *secrets]
    random.shuffle(pieces)
    text = " ".join(pieces)
    redactor = redactor_of(secrets)
    redacted = redactor.text(text)
    assert not any(secret in redacted for secret in secrets)
    if not any(secret in text for secret in secrets):
        assert redacted == text
    raw = redactor.data(text.encode())
    assert not any(secret.encode() in raw for secret in secrets)


@given(SECRETS, LETTERS)
def test_unfinished_is_the_longest_beginning_of_a_secret_at_the_end(secrets: list[str], text: str) -> None:
    data = text.encode()
    beginnings = {secret.encode()[:length] for secret in secrets for length in range(len(secret.encode()))}
    longest = max((len(start) for start in beginnings if data.endswith(start)), default=0)
    assert redactor_of(secrets).unfinished(data) == longest


def test_a_secret_that_is_forgotten_is_left_and_those_like_it_are_not() -> None:
    redactor = redactor_of(["swe-core-one", "swe-core-two"])
    redactor.discard("swe-core-one")
    redactor.discard("was-never-known")
    assert redactor.text("swe-core-one swe-core-two") == f"swe-core-one {MARK}"
    redactor.discard("swe-core-two")
    assert redactor.text("swe-core-two") == "swe-core-two"


def test_short_secrets_are_left() -> None:
    assert redactor_of(["seven77"]).text("seven77") == "seven77"
