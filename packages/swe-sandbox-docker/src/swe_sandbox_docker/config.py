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
        description="the engine's socket, unix:///PATH; default: DOCKER_HOST, then /var/run/docker.sock",
    )
    pull: Literal["missing", "never"] = Field(
        default="missing", description="whether an image that is not on this host is pulled"
    )
    seccomp: Literal["ours", "engine"] = Field(
        default="ours",
        description="whose filter of system calls containers have: ours, without which the network policies "
        "`llm` and `none` are refused, or whatever the engine has, which is then trusted",
    )
