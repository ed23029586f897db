"""Experiment trackers of a training: which ones, and where they write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.trackers import tracked_name, trackers, variables

RUN = "20260102-030405-abcdef12"


def test_trackers_are_those_of_report_to() -> None:
    for report_to, names in ("none", []), ("wandb", ["wandb"]), (["trackio", "wandb"], ["trackio", "wandb"]):
        assert trackers(TRLConfig(grpo={"report_to": report_to})) == names
    assert trackers(TRLConfig()) == []


def test_trackers_write_into_the_run_directory_unless_the_user_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TENSORBOARD_LOGGING_DIR", "WANDB_DIR", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    before = dict(os.environ)
    with variables(tmp_path, RUN):
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
        assert (os.environ["WANDB_DIR"], os.environ["WANDB_RUN_ID"]) == (str(tmp_path), RUN)
        assert os.environ["WANDB_PROJECT"] == "theirs"
    assert dict(os.environ) == before
    assert tracked_name(tmp_path / "mine", RUN) == "mine-abcdef12"
