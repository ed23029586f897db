"""Experiment trackers of a training: which ones, under which name, and where they write.

TRL reports to them (`report_to`). This module imports neither torch nor TRL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swe_core.errors import ConfigError, SweError, sentence
from swe_core.run.launcher import Launch
from swe_core.trackers.names import PROJECT, free_name
from swe_core.trackers.options import TrackOptions
from swe_trainer_trl.config import TRLConfig

TENSORBOARD = "tensorboard"
MLFLOW = "mlflow.db"
ARTIFACTS = "mlartifacts"
"""Names in the run directory. wandb makes the folder `wandb` there."""
TAG = "swe-core.run"
"""Tag of a run in MLflow, by which a resume finds it."""

MODULES: Mapping[str, tuple[str, ...]] = {
    "trackio": ("trackio",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
"""Tracker, and package of that name → modules, one of which it needs. TRL knows more trackers."""
_DATABASE = "sqlalchemy"
"""What MLflow needs for a file on this machine; `mlflow-skinny`, which is for servers, comes without."""
_URI = "MLFLOW_TRACKING_URI"
_WITHOUT_KEY = ("offline", "dryrun", "disabled")
"""Modes in which wandb sends nothing."""


def trackers(config: TRLConfig) -> list[str]:
    """Return the trackers of `worker.trl.grpo.report_to`."""
    names = config.grpo.get("report_to") or []
    listed = [names] if isinstance(names, str) else list(names)
    return [] if listed == ["none"] else listed


def with_trackers(config: TRLConfig, track: TrackOptions) -> TRLConfig:
    """Return the settings of the worker, in which `report_to` has the trackers of `track.to`.

    Raises:
        ConfigError: Both settings are set, and differ.
    """
    if not track.to:
        return config
    if "report_to" in config.grpo and sorted(trackers(config)) != sorted(track.to):
        raise ConfigError(
            f"worker.trl.grpo.report_to is {config.grpo['report_to']!r} and track.to {list(track.to)!r}: set "
            "one of them"
        )
    return config.model_copy(update={"grpo": {**config.grpo, "report_to": list(track.to)}})


def require(names: Collection[str]) -> None:
    """Check that these trackers can be used, before anything is started.

    Raises:
        ConfigError: A library is not installed, or wandb accepts no key.
    """
    for name in names:
        if name in MODULES and not any(map(find_spec, MODULES[name])):
            raise ConfigError(
                f"the tracker {name!r} needs the library {name}, which is not installed: pip install {name}"
            )
    if "mlflow" in names and _URI not in os.environ and find_spec(_DATABASE) is None:
        raise ConfigError(
            "the tracker 'mlflow' needs the library mlflow with its database: pip install mlflow, or name a "
            f"server in {_URI}"
        )
    if "wandb" in names and os.environ.get("WANDB_MODE") not in _WITHOUT_KEY:
        import wandb

        try:
            wandb.login()
        except Exception as error:  # the boundary to wandb, whose errors are of many types
            raise ConfigError(
                f"the tracker 'wandb' cannot be used ({sentence(error)}): set WANDB_API_KEY, or "
                "WANDB_MODE=offline"
            ) from error


def named(launch: Launch, names: Collection[str]) -> Launch:
    """Return the launch with the name of the tracked run in its settings, which a resume reads again.

    The name is that of the run directory. trackio continues a run of the same name, so a new training gets a
    name that is free there.
    """
    track = launch.settings.track
    if not names or track.name is not None:
        return launch
    name = launch.directory.absolute().name
    if "trackio" in names and not launch.resume:
        name = free_name(track, name)
    track = track.model_copy(update={"name": name})
    return replace(launch, settings=launch.settings.model_copy(update={"track": track}))


def defaults(names: Collection[str], track: TrackOptions) -> dict[str, Any]:
    """Return defaults of TRL's keys for these trackers. trackio's Space is private, and has no copy."""
    if not names:
        return {}
    keys: dict[str, Any] = {"run_name": track.name, "project": track.project or PROJECT}
    if "trackio" in names:
        keys |= {"trackio_space_id": track.space, "trackio_static_space_id": False, "hub_private_repo": True}
    return keys


@contextmanager
def variables(names: Collection[str], track: TrackOptions, directory: Path, run_id: str) -> Iterator[None]:
    """Set the variables that the trackers read, for the length of the context. Those of the user win.

    Args:
        names: The trackers.
        track: Their settings. A project that is set there wins over the user's variables.
        directory: The run directory, which exists.
        run_id: Unique name of the run, the same after a resume.

    Raises:
        SweError: MLflow cannot be used.
    """
    place = directory.absolute()
    chosen: dict[str, str] = {}
    project: dict[str, str] = {}
    if "tensorboard" in names:
        chosen["TENSORBOARD_LOGGING_DIR"] = str(place / TENSORBOARD)
    if "wandb" in names:
        chosen |= {"WANDB_DIR": str(place), "WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"}
        project["WANDB_PROJECT"] = track.project or PROJECT
    if "mlflow" in names:
        chosen[_URI] = f"sqlite:///{place / MLFLOW}"
        project["MLFLOW_EXPERIMENT_NAME"] = track.project or PROJECT
    before = dict(os.environ)
    try:
        os.environ.update({**chosen, **project, **before, **(project if track.project else {})})
        if "mlflow" in names:
            os.environ["MLFLOW_TAGS"] = _tags(run_id)
            artifacts = None if _URI in before else (place / ARTIFACTS).as_uri()
            for name, value in _mlflow_run(run_id, artifacts).items():
                os.environ.setdefault(name, value)
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _tags(run_id: str) -> str:
    """Return the user's tags for MLflow with our own, as JSON."""
    try:
        return json.dumps({**json.loads(os.environ.get("MLFLOW_TAGS") or "{}"), TAG: run_id})
    except (ValueError, TypeError):
        raise ConfigError("the variable MLFLOW_TAGS must be a JSON object: correct it, or unset it") from None


def _mlflow_run(run_id: str, artifacts: str | None) -> dict[str, str]:
    """Return the variables that continue the run with our tag in MLflow; none if there is no such run.

    Args:
        artifacts: URI of the files of a new experiment; None leaves that to the server.
    """
    from mlflow import MlflowClient

    name = os.environ["MLFLOW_EXPERIMENT_NAME"]
    try:
        client = MlflowClient(os.environ[_URI])
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            client.create_experiment(name, artifacts)
            return {}
        runs = client.search_runs([experiment.experiment_id], f"tags.`{TAG}` = '{run_id}'", max_results=1)
    except Exception as error:  # the boundary to MLflow, whose errors are of many types
        raise SweError(f"MLflow at {os.environ[_URI]!r} cannot be used: {sentence(error)}") from error
    # It refuses other values for the parameters of that run, such as the server's new port.
    return {"MLFLOW_RUN_ID": runs[0].info.run_id, "MLFLOW_MAX_LOG_PARAMS": "0"} if runs else {}
