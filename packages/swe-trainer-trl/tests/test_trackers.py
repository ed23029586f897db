"""Experiment trackers of a training: which ones, under which name, and where they write."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_core.errors import ConfigError
from swe_core.run.launcher import Launch
from swe_core.run.settings import Settings
from swe_core.trackers.options import TrackOptions
from swe_trainer_trl import trackers as module
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.trackers import defaults, named, require, trackers, variables, with_trackers

RUN = "20260102-030405-abcdef12"


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "TENSORBOARD_")):
            monkeypatch.delenv(name)


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name in missing else object())


def launched(directory: Path, resume: bool = False, **track: Any) -> TrackOptions:
    launch = Launch(Settings(track=TrackOptions(**track)), directory, resume)
    return named(launch, ["wandb"]).settings.track


@pytest.mark.parametrize(
    ("report_to", "names"),
    [(None, []), ("none", []), ("wandb", ["wandb"]), (["trackio", "wandb"], ["trackio", "wandb"])],
)
def test_trackers_are_those_of_report_to(report_to: object, names: list[str]) -> None:
    assert trackers(TRLConfig(grpo={"report_to": report_to})) == names


def test_trackers_of_the_run_become_those_of_the_training() -> None:
    track = TrackOptions(to=("trackio", "wandb"))
    assert trackers(with_trackers(TRLConfig(grpo={"max_steps": 3}), track)) == ["trackio", "wandb"]
    assert trackers(with_trackers(TRLConfig(grpo={"report_to": ["wandb", "trackio"]}), track)) == [
        "trackio",
        "wandb",
    ]
    assert trackers(with_trackers(TRLConfig(grpo={"report_to": "wandb"}), TrackOptions())) == ["wandb"]


def test_two_settings_of_trackers_that_differ_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"report_to is 'wandb' and track.to \['trackio'\]: set one of them"
    ):
        with_trackers(TRLConfig(grpo={"report_to": "wandb"}), TrackOptions(to=("trackio",)))


@pytest.mark.parametrize("name", ["trackio", "tensorboard", "wandb", "mlflow"])
def test_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    without(monkeypatch, name, "tensorboardX")
    with pytest.raises(ConfigError) as raised:
        require([name])
    assert str(raised.value) == (
        f"the tracker {name!r} needs the library {name}, which is not installed: pip install {name}"
    )


def test_mlflow_without_database_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "sqlalchemy")
    with pytest.raises(ConfigError, match="pip install mlflow, or name a server in MLFLOW_TRACKING_URI"):
        require(["mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    require(["mlflow"])


@pytest.mark.slow
def test_wandb_without_key_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)  # no terminal, where wandb would ask
        with pytest.raises(ConfigError, match="set WANDB_API_KEY, or WANDB_MODE=offline"):
            require(["wandb"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    require(["wandb"])


def test_tracked_run_has_the_name_of_its_directory(tmp_path: Path) -> None:
    assert launched(tmp_path / "mine").name == "mine"
    assert launched(tmp_path / "mine", resume=True).name == "mine"
    assert launched(tmp_path / "mine", name="other").name == "other"


def test_defaults_name_the_run_and_keep_a_space_private() -> None:
    keys = defaults(["trackio"], TrackOptions(name="mine", space="me/board"))
    assert keys == {
        "run_name": "mine",
        "project": "swe-core",
        "trackio_space_id": "me/board",
        "trackio_static_space_id": False,
        "hub_private_repo": True,
    }
    wandb = defaults(["wandb"], TrackOptions(name="mine", project="ours"))
    assert wandb == {"run_name": "mine", "project": "ours"}
    assert defaults([], TrackOptions(name="mine")) == {}


def test_trackers_write_into_the_run_directory(tmp_path: Path) -> None:
    before = dict(os.environ)
    with variables(["tensorboard", "wandb"], TrackOptions(), tmp_path, RUN):
        new = {name: value for name, value in os.environ.items() if name not in before}
    assert new == {
        "TENSORBOARD_LOGGING_DIR": str(tmp_path / "tensorboard"),
        "WANDB_DIR": str(tmp_path),
        "WANDB_PROJECT": "swe-core",
        "WANDB_RESUME": "allow",
        "WANDB_RUN_ID": RUN,
    }
    assert dict(os.environ) == before


def test_variables_of_the_user_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "elsewhere")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    with variables(["tensorboard", "wandb"], TrackOptions(), tmp_path, RUN):
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == "elsewhere"
        assert os.environ["WANDB_PROJECT"] == "theirs"
    with variables(["wandb"], TrackOptions(project="set"), tmp_path, RUN):
        assert os.environ["WANDB_PROJECT"] == "set"
    assert os.environ["WANDB_PROJECT"] == "theirs"


def test_tags_of_mlflow_that_are_no_json_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TAGS", "{")
    with pytest.raises(ConfigError, match="MLFLOW_TAGS must be a JSON object"):
        with variables(["mlflow"], TrackOptions(), tmp_path, RUN):
            pass
    assert os.environ["MLFLOW_TAGS"] == "{"
