"""The agents "oracle" and "nop", which resolve every sound task and none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swe_core.api.agent import AgentContext, AgentSpec
from swe_core.api.component import Component, Config
from swe_core.errors import AgentError
from swe_core.plugins.hookspecs import hookimpl
from swe_core.sandboxing.repository.patch import as_patch

_APPLY = """
cd -- "$1" || exit
git apply --whitespace=nowarn "$2" || git apply --whitespace=nowarn --ignore-whitespace "$2" || exit
git apply --cached --whitespace=nowarn "$2" 2>/dev/null || :
"""
# The second is for a data set that has lost the CRs of a patch. The third adds files that git ignores.


class Oracle(AgentSpec):
    """Applies the task's gold patch, which resolves every sound task."""

    name = "oracle"
    dialect = None

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return the gold patch, outside the repository.

        Raises:
            AgentError: The task has none.
        """
        patch = ctx.task.patch
        if not patch.strip():
            raise AgentError(
                f"the task {ctx.task.instance_id!r} has no gold patch, which the agent 'oracle' applies; "
                "leave the task out or choose another agent"
            )
        return {_patch_path(ctx): as_patch(patch)}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ("sh", "-c", _APPLY, "sh", ctx.workdir, _patch_path(ctx))


def _patch_path(ctx: AgentContext) -> str:
    return f"{ctx.home}/gold.patch"


class Nop(AgentSpec):
    """Does nothing, which resolves no sound task."""

    name = "nop"
    dialect = None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ("true",)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    return [
        Component("oracle", lambda config: Oracle(), Config, "applies the gold patch; makes no LLM call"),
        Component("nop", lambda config: Nop(), Config, "does nothing; makes no LLM call"),
    ]
