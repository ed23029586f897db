"""Run an agent once, for real, with a script in place of the model.

    trial = await run_once(MyAgent(), ScriptedModel(Run("echo hi > made.txt"), "Done."))
    assert trial.failure is None
    assert [turn.dialect for turn in trial.turns] == ["chat", "chat"]

The sandbox, the interception server and the agent are real. The script calls the agent's own shell tool,
whatever its name is.
"""

from __future__ import annotations

from typing import Any

from swe_core.api.agent import AgentSpec
from swe_core.api.engine import Engine
from swe_core.api.sandbox import SandboxProvider
from swe_core.plugins.manager import Role
from swe_core.run.components import load_plugins
from swe_core.run.settings import RunOptions
from swe_core.run.trial import Run, Scripted, ScriptedModel, Trial, run_trial, shell_reply, text_reply

__all__ = ["Run", "Scripted", "ScriptedModel", "Trial", "builtin", "run_once", "shell_reply", "text_reply"]


async def run_once(
    agent: AgentSpec, engine: Engine, *, provider: SandboxProvider | None = None, **more: Any
) -> Trial:
    """Run `agent` once, by default in the sandbox `local`. See `swe_core.run.trial.run_trial`."""
    from swe_core.builtin.local.provider import LocalProvider

    return await run_trial(agent, engine, provider or LocalProvider(), **more)


def builtin(role: Role, name: str, **settings: Any) -> Any:
    """Return the component `name` of a plugin that ships with the core, such as the sandbox `local`."""
    component = load_plugins(RunOptions(plugins=())).find(role, name).component
    return component.create(component.config(**settings))
