"""The sandbox "local": bubblewrap on this machine, no container engine and no root needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from swe_core.api.component import Component, Config
from swe_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from swe_core.api.checks import Check
    from swe_core.api.sandbox import SandboxProvider


class LocalConfig(Config):
    """`[sandbox.local]`."""

    unisolated: bool = Field(
        default=False,
        description="run without isolation where this machine cannot isolate",
    )


def _create(config: LocalConfig) -> SandboxProvider:
    from swe_core.builtin.local.provider import LocalProvider

    return LocalProvider(unisolated=config.unisolated)


@hookimpl
def swe_sandboxes() -> Iterable[Component[SandboxProvider]]:
    return [Component("local", _create, LocalConfig, "bubblewrap on this machine; needs no root")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    from swe_core.builtin.local.checks import CHECKS

    return CHECKS
