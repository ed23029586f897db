"""Every chat format of `renderers` that needs no download, with a tokenizer that has its special tokens."""

from __future__ import annotations

import re
from functools import cache

import pytest

from swe_core.errors import ConfigError
from swe_core.testing.tokenizer import make_tokenizer
from swe_core.tokens.families import FAMILIES, FamilyRenderer

MADE = sorted(FAMILIES - {"gpt-oss"})  # whose vocabulary would be downloaded


@cache
def special_tokens(family: str) -> tuple[str, ...]:
    """The special tokens that a format asks for, found by giving it those that it misses."""
    special = ["<|endoftext|>", "<think>", "</think>"]
    while True:
        try:
            FamilyRenderer(make_tokenizer(special), family)
        except ConfigError as error:
            missing = re.search(r"oken(?: for)? '([^']+)'", str(error))
            assert missing is not None, error
            assert missing[1] not in special, error
            special.append(missing[1])
        else:
            return tuple(special)


@cache
def made(family: str) -> FamilyRenderer:
    return FamilyRenderer(make_tokenizer(special_tokens(family)), family)


@pytest.fixture(params=MADE)
def renderer(request: pytest.FixtureRequest) -> FamilyRenderer:
    return made(request.param)
