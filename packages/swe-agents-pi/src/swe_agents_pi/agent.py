"""PiAgent: unmodified Pi in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swe_agents_pi.bundle import ANSWER, CLI, PI, pi_recipe
from swe_agents_pi.config import PiConfig
from swe_agents_pi.events import parse_line
from swe_core import AgentContext, AgentEvent, ChatRequest
from swe_core.bundles import BundledAgent, Recipe, loopback_env, merged

PROVIDER = "rollout"
"""Pi's name for the provider with the rollout's endpoint."""
TOKEN = "SWE_LLM_TOKEN"  # noqa: S105 (the name of a variable)
"""Variable with the rollout's token. No SDK reads it, so children of Pi do not call the LLM by accident."""
_SUMMARY = "You are a context summarization assistant"
"""How the instructions for the summary of a compaction begin."""
_DAY_MS = 24 * 3600 * 1000
"""Timeout longer than any rollout, because the host limits the time of a reply."""


class PiAgent(BundledAgent):
    """The Pi coding agent, in JSON mode, with the rollout's endpoint as its only provider.

    Pi does not load a repository's files for agents (AGENTS.md, extensions, skills, settings), which would be
    a second, unrecorded prompt.

    In JSON mode Pi exits with 0 even if its LLM calls fail: its events say so. An empty reply, or one that
    was cut off at its token limit, is no failure. The policy wrote it, and the patch is graded.
    """

    name = "pi"
    title = "Pi"
    version = PI.version
    dialect = "chat"

    def __init__(self, config: PiConfig | None = None) -> None:
        self.config = config or PiConfig()

    def recipe(self) -> Recipe:
        """Return what the bundle of node and Pi consists of."""
        return pi_recipe(self.config.node)

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
            f"{bundle}/bin/node", f"{bundle}/{CLI}", "--print", "--mode", "json", "--no-session",
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
        return loopback_env(ctx) | {
            "PI_CODING_AGENT_DIR": _agent_dir(ctx),
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
            TOKEN: ctx.api_key,
        }

    def stdin(self, ctx: AgentContext) -> bytes:
        """Return the prompt. On standard input, Pi does not parse it as command line arguments."""
        return ctx.prompt.encode()

    def summary(self, request: ChatRequest) -> bool:
        """Return whether Pi asks for the summary of a compaction: its instructions for that say so."""
        system = [one["content"] for one in request.messages[:1] if one["role"] == "system"]
        return any(text.startswith(_SUMMARY) for text in system)

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the transcript events of one line of Pi's JSON events."""
        return parse_line(line)

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
            "models": [merged(model, self.config.model)],
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
        return merged(settings, self.config.settings)


def _agent_dir(ctx: AgentContext) -> str:
    return f"{ctx.home}/pi"
