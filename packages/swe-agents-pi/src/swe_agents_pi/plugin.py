"""The plugin's entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from swe_agents_pi.config import PiConfig
from swe_core import AgentSpec, Component, hookimpl

if TYPE_CHECKING:
    from swe_core.api.checks import Check


def _create(config: PiConfig) -> AgentSpec:
    from swe_agents_pi.agent import PiAgent

    return PiAgent(config)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `pi`."""
    return [Component("pi", _create, PiConfig, "the Pi coding agent, unmodified, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the checks of what Pi needs."""
    from swe_agents_pi.agent import PiAgent
    from swe_core.bundles import bundle_checks

    return bundle_checks(PiAgent)
