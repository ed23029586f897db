"""Fixtures of the export tests: runs with exact tokens, and how the command is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swe_core.cli.export import export
from swe_core.rollout.run_directory import RunDirectory
from swe_testing.sample_runs import sample_training

from ..hub.conftest import run

__all__ = ["run"]  # a fixture
Export = Callable[..., Path]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A training with groups, compactions, an error and a stale attempt. Not to be changed."""
    return sample_training(tmp_path_factory.mktemp("training") / "run")


def invoke(*args: object) -> Result:
    """What the command prints, and its exit code."""
    return CliRunner().invoke(export, [str(one) for one in args])


@pytest.fixture
def exported(tmp_path: Path) -> Export:
    """Export a run, which must succeed, and return the folder."""

    def write(run: RunDirectory, name: str, *more: object) -> Path:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        done = invoke(run.path, "--format", name, "--out", out, *more)
        assert done.exit_code == 0, (done.output, done.exception)
        return out

    return write
