"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .playground import Played, Playground, playing


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """A server with a plain shell and the task's own tests."""
    with playing(Playground()) as server:
        yield server
