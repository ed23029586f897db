"""The agent "mini": a minimal bash-tool loop in one file, which any sandbox with python3 runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from swe_core.api.component import Component, Config
from swe_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from swe_core.api.agent import AgentSpec


class MiniConfig(Config):
    """`[agent.mini]`."""

    max_turns: int = Field(default=100, gt=0, description="maximum LLM calls")
    command_timeout: float = Field(default=120.0, gt=0, description="maximum seconds of one bash command")
    output_chars: int = Field(
        default=10_000, gt=0, description="characters of output that the model sees: first and last half"
    )


def _create(config: MiniConfig) -> AgentSpec:
    from swe_core.builtin.mini.spec import Mini

    return Mini(config)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [Component("mini", _create, MiniConfig, "a minimal bash-tool loop; needs python3 in the sandbox")]
