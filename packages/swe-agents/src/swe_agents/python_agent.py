"""PythonAgent: an agent whose Python packages the bundle carries, with a runner of this package."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from swe_core import AgentContext, Config
from swe_core.bundles import BundledAgent, File, Python, Recipe, Wheels, loopback_env

_TOKEN = "SWE_LLM_TOKEN"  # noqa: S105 (the name of a variable)
_DROPPED = (
    "*/tests/*", "*.pyi", "*.h", "*.pxd", "litellm/proxy/_experimental/out/*", "litellm/proxy/swagger/*",
)  # fmt: skip
"""What no agent imports."""


class PythonAgentConfig(Config):
    """Settings of every agent in Python."""

    python: Path | None = Field(
        default=None,
        description="CPython to bundle, of a version that the agent supports; unset: one of the host",
    )


class PythonAgent(BundledAgent):
    """An agent that `runner` starts inside the sandbox, from the settings file, with the prompt as input.

    `python_launcher.py` hands the runner the token, which the agent's commands therefore do not inherit.

    Attributes:
        module: Name of the agent's module; the runner is `<module>_runner.py`.
        pythons: The versions of CPython that its lock in `locks` is made for, the best one first.
        dropped: Patterns of further paths in `site-packages` to leave out.
    """

    module: ClassVar[str]
    pythons: ClassVar[tuple[str, ...]]
    dropped: ClassVar[tuple[str, ...]] = ()
    config: PythonAgentConfig

    def variables(self, ctx: AgentContext) -> Mapping[str, str]:
        """Return the variables that the agent's packages read when they are imported.

        They keep LiteLLM from the network and from `.env` files.
        """
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}

    @abstractmethod
    def settings(self, ctx: AgentContext) -> Mapping[str, Any]:
        """Return what the runner needs to know, without the token."""

    def recipe(self) -> Recipe:
        package = resources.files("swe_agents")
        lock = package.joinpath("locks", f"{self.name}.txt").read_text()
        python = Python(self.pythons, self.config.python)
        parts = (
            python,
            Wheels(lock, python, drop=(*_DROPPED, *self.dropped)),
            File("run/launcher.py", package.joinpath("python_launcher.py").read_bytes()),
            File("run/runner.py", package.joinpath(f"{self.module}_runner.py").read_bytes()),
        )
        return Recipe(self.name, parts)

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return the settings file, without the token."""
        told = {"variables": self.variables(ctx), "settings": self.settings(ctx)}
        return {_settings_file(ctx): json.dumps(told).encode()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        bundle = ctx.asset(self.name)
        program = [f"{bundle}/bin/python3", "-I", "-B", "-W", "ignore", f"{bundle}/run/launcher.py"]
        return [*program, _settings_file(ctx)]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {_TOKEN: ctx.api_key, **loopback_env(ctx)}

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.prompt.encode()


def _settings_file(ctx: AgentContext) -> str:
    return f"{ctx.home}/settings.json"
