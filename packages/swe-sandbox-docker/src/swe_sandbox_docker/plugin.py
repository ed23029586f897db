"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core import Component, SandboxProvider, hookimpl
from swe_sandbox_docker.config import DockerConfig

if TYPE_CHECKING:
    from swe_core.api.checks import Check


def _create(config: DockerConfig) -> SandboxProvider:
    from swe_sandbox_docker.provider import DockerProvider

    return DockerProvider(config)


@hookimpl
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:
    """Register the sandbox `docker`."""
    yield Component(
        name="docker",
        create=_create,
        config=DockerConfig,
        summary="a container per sandbox, on a Docker Engine",
    )


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the checks of what container sandboxes need."""
    from swe_sandbox_docker.checks import checks

    return checks()
