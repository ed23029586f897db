"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core import Component, SandboxProvider, hookimpl
from swe_sandbox_k8s.config import K8sConfig

if TYPE_CHECKING:
    from swe_core.api.checks import Check


def _create(config: K8sConfig) -> SandboxProvider:
    from swe_sandbox_k8s.provider import K8sProvider

    return K8sProvider(config)


@hookimpl
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:
    """Register the sandbox `k8s`. This host connects to the API server, and nothing connects back."""
    yield Component(
        name="k8s",
        create=_create,
        config=K8sConfig,
        summary="a pod per sandbox; needs a Kubernetes cluster with agent-sandbox",
    )


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the checks of what Kubernetes sandboxes need."""
    from swe_sandbox_k8s.checks import CHECKS

    return CHECKS
