"""A trackio of the test's own: its files are in the test's directory, and it asks nobody."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest
from trackio import context_vars, sqlite_storage, utils

from swe_core.rollout.run_directory import RunDirectory

from ..hub.runs import new_run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trackio keeps what it gets."""
    home = tmp_path / "trackio"
    for module in (utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", home)
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_STORAGE_MODE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # With a token trackio asks the Hub for the name of the user.
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    context_vars.current_project.set(None)
    return home


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """An empty run directory."""
    return new_run(tmp_path / "mine")
