"""The settings of the docker sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from swe_core import Config
from swe_sandbox_docker.address import DEFAULT_HOST, check_hosts, check_tls


def _list(hosts: object) -> object:
    if isinstance(hosts, str):
        raise ValueError(f'expected a list, such as ["{hosts or DEFAULT_HOST}"]')
    return hosts


def _hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    check_hosts(hosts)
    return hosts


def _tls(folder: Path) -> Path:
    check_tls(folder)
    return folder


class DockerConfig(Config):
    """`[sandbox.docker]`."""

    hosts: Annotated[tuple[str, ...], BeforeValidator(_list), AfterValidator(_hosts)] = Field(
        default=(),
        description="engines: unix:///PATH, tcp://HOST:PORT, ssh://[USER@]HOST; empty: DOCKER_HOST, else "
        "/var/run/docker.sock",
    )
    tls: Annotated[Path, AfterValidator(_tls)] | None = Field(
        default=None,
        description="folder with ca.pem, cert.pem and key.pem for tcp:// hosts; unset: DOCKER_CERT_PATH",
    )
    pull: Literal["missing", "never"] = Field(default="missing", description="pull missing images, or never")
    seccomp: Literal["ours", "engine"] = Field(
        default="ours",
        description="system call filter: ours, or the engine's, which is then trusted",
    )
