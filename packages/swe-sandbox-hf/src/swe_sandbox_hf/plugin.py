"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_core import Component, SandboxProvider, hookimpl
from swe_sandbox_hf.config import HfConfig

if TYPE_CHECKING:
    from swe_core.api.checks import Check


def _create(config: HfConfig) -> SandboxProvider:
    from swe_sandbox_hf.provider import HfProvider

    return HfProvider(config)


@hookimpl
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:
    """Register the sandbox `hf`. This host connects to it, without a public URL, tunnel or open port."""
    yield Component(
        name="hf",
        create=_create,
        config=HfConfig,
        summary="a Hugging Face Sandbox per sandbox; needs a token and costs money",
    )


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the checks of what Hugging Face Sandboxes need."""
    from swe_sandbox_hf.checks import CHECKS

    return CHECKS
