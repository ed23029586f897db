"""Fixtures of the Hub tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.rollout.run_directory import RunDirectory

from .runs import new_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """An empty run directory."""
    return new_run(tmp_path / "run")
