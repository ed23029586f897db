"""The agents "oracle" and "nop": the two ends of the scale that every task is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swe_core.api.agent import AgentContext, AgentSpec
from swe_core.api.component import Component, Config
from swe_core.errors import AgentError
from swe_core.plugins.hookspecs import hookimpl


class Oracle(AgentSpec):
    """Applies the task's gold patch; every sound task is resolved by it."""

    name = "oracle"
    dialect = None

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """The gold patch, outside the repository.

        Raises:
            AgentError: The task has none.
        """
        patch = ctx.task.patch
        if not patch.strip():
            raise AgentError(
                f"the task {ctx.task.instance_id!r} has no gold patch, which the agent 'oracle' applies; "
                "leave the task out or choose another agent"
            )
        return {_patch_path(ctx): (patch if patch.endswith("\n") else f"{patch}\n").encode()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """`git apply`."""
        return ("git", "-C", ctx.workdir, "apply", "--whitespace=nowarn", _patch_path(ctx))


def _patch_path(ctx: AgentContext) -> str:
    return f"{ctx.home}/gold.patch"


class Nop(AgentSpec):
    """Does nothing; no sound task is resolved by it."""

    name = "nop"
    dialect = None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """`true`."""
        return ("true",)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Offer the agents "oracle" and "nop"."""
    return [
        Component("oracle", lambda config: Oracle(), Config, "applies the gold patch; makes no LLM call"),
        Component("nop", lambda config: Nop(), Config, "does nothing; makes no LLM call"),
    ]
