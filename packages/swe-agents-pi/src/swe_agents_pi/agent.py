"""PiAgent: unmodified Pi in a sandbox."""

from __future__ import annotations

import ipaddress
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from swe_agents_pi.bundle import ANSWER, CLI, NODE, PI, ensure_bundle
from swe_agents_pi.config import PiConfig
from swe_agents_pi.events import parse_line
from swe_core import AgentContext, AgentEvent, AgentExit, AgentSpec, Asset

PROVIDER = "rollout"
"""Pi's name for the provider with the rollout's endpoint."""
TOKEN = "SWE_LLM_TOKEN"  # noqa: S105 (the name of a variable)
"""Variable with the rollout's token. No SDK reads it, so children of Pi do not call the LLM by accident."""
_DAY_MS = 24 * 3600 * 1000
"""Timeout longer than any rollout, because the host limits the time of a reply."""


class PiAgent(AgentSpec):
    """The Pi coding agent, in JSON mode, with the rollout's endpoint as its only provider.

    Pi does not load a repository's files for agents (AGENTS.md, extensions, skills, settings), which would be
    a second, unrecorded prompt.
    """

    name = "pi"
    version = PI.version
    dialect = "chat"

    def __init__(self, config: PiConfig | None = None) -> None:
        self.config = config or PiConfig()

    def assets(self) -> Sequence[Asset]:
        """Return the bundle of node and Pi, built on first use.

        Raises:
            SweError: See `ensure_bundle`.
        """
        bundle = ensure_bundle(self.config.node)
        return (Asset(name=self.name, path=bundle.path, digest=bundle.digest),)

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return Pi's models.json and settings.json for this rollout, without the token."""
        return {
            f"{_agent_dir(ctx)}/models.json": json.dumps(self._models(ctx)).encode(),
            f"{_agent_dir(ctx)}/settings.json": json.dumps(self._settings()).encode(),
        }

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """Return the command of Pi in print mode: it reads one prompt from standard input, and ends."""
        bundle = ctx.asset(self.name)
        argv = [
            f"{bundle}/{NODE}", f"{bundle}/{CLI}", "--print", "--mode", "json", "--no-session",
            "--no-extensions", "--no-skills", "--no-prompt-templates", "--no-context-files", "--no-themes",
            "--no-mcp", "--no-approve",
            "--provider", PROVIDER, "--model", ctx.model, "--thinking", self.config.thinking,
            "--extension", f"{bundle}/{ANSWER}", "--tools", ",".join(self.config.tools),
        ]  # fmt: skip
        if self.config.append_system_prompt:
            argv += ["--append-system-prompt", self.config.append_system_prompt]
        return argv

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        """Return Pi's directory, its switches and the token."""
        env = {
            "PI_CODING_AGENT_DIR": _agent_dir(ctx),
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
            TOKEN: ctx.api_key,
        }
        host = urlsplit(ctx.base_url).hostname or ""
        if _is_loopback(host):  # a proxy in the image's environment would get the LLM calls
            env |= {"NO_PROXY": host, "no_proxy": host}
        return env

    def stdin(self, ctx: AgentContext) -> bytes:
        """Return the prompt. On standard input, Pi does not parse it as command line arguments."""
        return ctx.prompt.encode()

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the transcript events of one line of Pi's JSON events."""
        return parse_line(line)

    def failure(self, ended: AgentExit) -> str | None:
        """Return why Pi failed, or None if it succeeded.

        In JSON mode Pi exits with 0 even if its LLM calls fail, so the last event decides. After a successful
        retry, the last event is not an error. An empty reply, or one that was cut off at its token limit, is
        no failure: the policy wrote it, and the patch is graded.
        """
        said = f": {ended.last_error.text}" if ended.last_error is not None else ""
        if ended.exit_code == 0:
            return f"Pi ended because its LLM call failed{said}" if said else None
        tail = ended.stderr_tail.strip().splitlines()
        said = said or (f": {tail[-1].strip()}" if tail else "")
        if ended.exit_code in (126, 127):
            return (
                f"Pi could not be started in the sandbox (exit code {ended.exit_code}){said}; the image must "
                "run the bundled node: it needs glibc, libstdc++6 and the architecture of this host"
            )
        if ended.exit_code > 128:
            return f"Pi was killed by {_signal_name(ended.exit_code - 128)}{said}"
        return f"Pi exited with code {ended.exit_code}{said}"

    def _models(self, ctx: AgentContext) -> dict[str, Any]:
        model: dict[str, Any] = {
            "id": ctx.model,
            "reasoning": self.config.thinking != "off",
            "contextWindow": self.config.context_window,
            "maxTokens": self.config.max_tokens,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            "compat": {
                "supportsDeveloperRole": False,
                "supportsStore": False,
                "maxTokensField": "max_tokens",
            },
        }
        provider = {
            "baseUrl": ctx.base_url,
            "api": "openai-completions",
            "apiKey": f"${TOKEN}",
            "models": [_merged(model, self.config.model)],
        }
        return {"providers": {PROVIDER: provider}}

    def _settings(self) -> dict[str, Any]:
        retries = self.config.retries
        settings: dict[str, Any] = {
            # Compaction rewrites the history that the policy saw, so it is off by default.
            "compaction": {"enabled": False},
            "retry": {
                "enabled": retries > 0,
                "maxRetries": retries,
                "baseDelayMs": 500,
                "provider": {"timeoutMs": _DAY_MS, "maxRetries": 0},
            },
            "httpIdleTimeoutMs": 0,
        }
        return _merged(settings, self.config.settings)


def _agent_dir(ctx: AgentContext) -> str:
    return f"{ctx.home}/pi"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _signal_name(number: int) -> str:
    """Return `SIGTERM` for 15; for SIGKILL also the usual cause."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory, or killed from outside)" if name == "SIGKILL" else name


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`. Tables merge key by key."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(below, value) if both else value  # type: ignore[arg-type]  # `both` ensures mappings
    return merged
