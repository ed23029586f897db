"""PushOptions: the settings of a push to the Hub."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from swe_core.api.component import Config


def _repository(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
        raise ValueError("expected OWNER/NAME")
    return name


class PushOptions(Config):
    """`[push]`: push finished rollouts to a data set on the Hugging Face Hub."""

    to: Annotated[str, AfterValidator(_repository)] | None = Field(
        default=None, description="OWNER/NAME of the data set; unset pushes nothing"
    )
    private: bool = Field(default=True, description="create private repositories and reject public ones")
    every: float = Field(default=300.0, gt=0, description="minimum seconds between two commits")
