"""One server of each mode for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .serving import Served, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose agent applies the gold patch."""
    with serving(tmp_path_factory.mktemp("served") / "run") as server:
        yield server


@pytest.fixture(scope="session")
def interactive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose client is the agent."""
    with serving(tmp_path_factory.mktemp("interactive") / "run", interactive=True) as server:
        yield server
