"""Fixtures of the Hub tests."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from swe_core.rollout.run_directory import RunDirectory
from swe_testing.hf import LocalHF

from .runs import new_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """An empty run directory."""
    return new_run(tmp_path / "run")


@pytest.fixture
def hf(threaded_hf: LocalHF, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> LocalHF:
    """A Hugging Face that a push asks again at once."""
    monkeypatch.setattr("swe_core.hub.push.WAIT", lambda attempt: 0.0)
    caplog.set_level(logging.INFO, "swe_core")
    return threaded_hf
