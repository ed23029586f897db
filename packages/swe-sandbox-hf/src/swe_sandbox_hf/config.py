"""The settings of the hf sandbox."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from swe_core import Config


def _repository(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
        raise ValueError("expected OWNER/NAME")
    return name


class HfConfig(Config):
    """`[sandbox.hf]`. The token comes from HF_TOKEN or `hf auth login` and is never a setting."""

    namespace: str | None = Field(
        default=None,
        description="user or organisation that owns and pays for the Jobs; unset: the user",
    )
    flavor: str = Field(default="cpu-basic", description="hardware, as in `hf jobs hardware`")
    internet: bool = Field(
        default=False,
        description="accept that sandboxes have internet access",
    )
    start_timeout: float = Field(
        default=300.0, gt=0, description="seconds until a sandbox must be ready, including the image pull"
    )
    idle_timeout: float = Field(
        default=600.0,
        ge=60,
        description="seconds until the service ends an unused sandbox",
    )
    max_concurrent: int = Field(default=32, ge=1, description="open sandboxes of this run; more wait")
    pool: bool = Field(
        default=False,
        description="many sandboxes in one Job; not for agents that call a model",
    )
    assets_repo: Annotated[str, AfterValidator(_repository)] | None = Field(
        default=None,
        description="OWNER/NAME of a data set with the agent's files; unset: upload to each sandbox",
    )
    sandboxes_per_host: int = Field(default=16, ge=1, description="with `pool`: sandboxes per Job")

    @model_validator(mode="after")
    def _pools_mount_nothing(self) -> Self:
        if self.pool and self.assets_repo is not None:
            raise ValueError("sandboxes of a pool mount nothing: leave out assets_repo, or pool")
        return self
