"""TrackOptions: the settings of experiment trackers."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from swe_core.api.component import Config


def _listed(names: Any) -> Any:
    """Return one name as a list of names."""
    return (names,) if isinstance(names, str) else names


def _space(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
        raise ValueError("expected OWNER/NAME")
    return name


class TrackOptions(Config):
    """`[track]`: send results to experiment trackers."""

    to: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        default=(),
        description="trackers: of an evaluation trackio, of a training also tensorboard, wandb, mlflow",
    )
    project: str | None = Field(default=None, min_length=1, description="project; unset: swe-core")
    name: str | None = Field(
        default=None, min_length=1, description="name of the run; unset: that of its directory"
    )
    space: Annotated[str, AfterValidator(_space)] | None = Field(
        default=None, description="OWNER/NAME of the private Space that trackio logs to; unset: this machine"
    )
