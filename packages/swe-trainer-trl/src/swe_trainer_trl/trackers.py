"""Experiment trackers of a training. TRL reports to those of `report_to`; here is where they write."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swe_trainer_trl.config import TRLConfig

PROJECT = "swe-core"
"""Project of trainings that name none."""
DEFAULTS: Mapping[str, Any] = {
    "project": PROJECT,
    "trackio_static_space_id": False,
    "hub_private_repo": True,
}
"""Defaults of TRL's keys: trackio's Space is private, and has no copy."""


def trackers(config: TRLConfig) -> list[str]:
    """Return the trackers of `worker.trl.grpo.report_to`."""
    names = config.grpo.get("report_to") or []
    listed = [names] if isinstance(names, str) else list(names)
    return [] if listed == ["none"] else listed


def tracked_name(directory: Path, run_id: str) -> str:
    """Return the name of a training for people, the same after a resume. trackio continues a run by its name.

    Args:
        directory: The run directory.
        run_id: Unique name of the run.
    """
    return f"{directory.absolute().name}-{run_id[-8:]}"


@contextmanager
def variables(directory: Path, run_id: str) -> Iterator[None]:
    """Set the variables that trackers read, for the length of the context. Those of the user win."""
    place = str(directory.absolute())
    ours = {
        "TENSORBOARD_LOGGING_DIR": f"{place}/tensorboard",
        "WANDB_DIR": place,
        "WANDB_PROJECT": PROJECT,
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow",
        "MLFLOW_EXPERIMENT_NAME": PROJECT,
    }
    ours = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
