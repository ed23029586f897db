"""The settings of the docker sandbox."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from swe_core import Config


class DockerConfig(Config):
    """`[sandbox.docker]`. DOCKER_HOST and Docker's contexts say where the engine is."""

    pull: Literal["missing", "never"] = Field(default="missing", description="pull missing images, or never")
    seccomp: Literal["ours", "engine"] = Field(
        default="ours",
        description="system call filter: ours, or the engine's, which is then trusted",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_engine(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.keys() & {"hosts", "tls"}:
            raise ValueError("the settings hosts and tls no longer exist: set DOCKER_HOST to one engine")
        return values
