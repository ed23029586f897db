"""The settings of the docker sandbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from swe_core import Config


class DockerConfig(Config):
    """`[sandbox.docker]`."""

    host: str | None = Field(
        default=None,
        pattern=r"^unix://",
        description="socket, unix:///PATH; unset: DOCKER_HOST, else /var/run/docker.sock",
    )
    pull: Literal["missing", "never"] = Field(default="missing", description="pull missing images, or never")
    seccomp: Literal["ours", "engine"] = Field(
        default="ours",
        description="system call filter: ours, or the engine's, which is then trusted",
    )
