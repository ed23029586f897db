"""One exported folder for the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .exporting import exported


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server of the demo tasks."""
    folder: Path = tmp_path_factory.mktemp("exported") / "swe_env"
    done = exported(str(folder))
    assert done.exit_code == 0, done.output
    return folder
