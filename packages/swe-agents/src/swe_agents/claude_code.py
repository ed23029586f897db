"""The agent `claude-code`: Claude Code in print mode. It is proprietary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from swe_agents.binaries import CLAUDE_CODE
from swe_core import AgentContext, AgentEvent, AgentExit, AgentSpec, ChatRequest, Component, Config, hookimpl
from swe_core.api.agent import EventKind
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, events_of_blocks, json_line, make_event, odd_line
from swe_core.bundles import BundledAgent, Node, Recipe, bundle_checks, for_this_machine, loopback_env, merged
from swe_core.errors import ConfigError

TOOLS = ("Bash", "Edit", "Read", "Write")
_OFF = (
    "AUTO_MEMORY", "BACKGROUND_TASKS", "CLAUDE_MDS", "EXPERIMENTAL_BETAS", "FILE_MENTIONS",
    "GIT_INSTRUCTIONS", "NONESSENTIAL_TRAFFIC", "NONSTREAMING_FALLBACK",
)  # fmt: skip
_SWITCHES = {
    **{f"CLAUDE_CODE_DISABLE_{what}": "1" for what in _OFF},
    "IS_SANDBOX": "1",  # else it refuses to run as root
    # Many chat templates refuse a system message that is not the first message.
    "CLAUDE_CODE_MODEL_CAPABILITIES": "-mid_conv_system",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line of its system prompt
    "API_TIMEOUT_MS": str(24 * 3600 * 1000),
}


class ClaudeCodeConfig(Config):
    """`[agent.claude-code]`. `[budget]` limits turns and tokens."""

    accept_license: bool = Field(default=False, description="you accept its terms, so that it is fetched")
    tools: tuple[str, ...] = Field(default=TOOLS, min_length=1, description="tools of the model")
    max_tokens: int = Field(default=8192, gt=0, description="tokens that it requests per reply")
    retries: int = Field(default=1, ge=0, description="retries of a failed LLM call")
    settings: dict[str, Any] = Field(default_factory=dict, description="values for its settings.json")
    args: tuple[str, ...] = Field(default=(), description="more arguments for its command")


class ClaudeCode(BundledAgent):
    """Claude Code. It loads no file for agents, and its commands do not inherit the endpoint."""

    name = "claude-code"
    title = "Claude Code"
    needs = "glibc and bash"
    version = CLAUDE_CODE["x86_64"].version
    dialect = "messages"

    def __init__(self, config: ClaudeCodeConfig | None = None) -> None:
        self.config = config or ClaudeCodeConfig()

    def recipe(self) -> Recipe:
        if not self.config.accept_license:
            raise ConfigError(
                "Claude Code is proprietary, and is fetched only if you accept its terms, "
                "https://code.claude.com/docs/en/legal-and-compliance: set "
                "agent.claude-code.accept_license = true, or choose another agent"
            )
        return Recipe(self.name, (for_this_machine(CLAUDE_CODE, self.name), Node()))  # Node for the relay

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return settings.json, and what each of its commands runs first."""
        # Compaction rewrites the history that the policy saw, so it is off by default.
        settings = {"autoCompactEnabled": False, "attribution": {"commit": "", "pr": ""}}
        written = json.dumps(merged(settings, self.config.settings))
        return {
            f"{ctx.home}/claude-code/settings.json": written.encode(),
            f"{ctx.home}/claude-code/env.sh": b"unset ANTHROPIC_BASE_URL ANTHROPIC_API_KEY\n",
        }

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return [
            f"{ctx.asset(self.name)}/claude-code/claude",
            "--print", "--verbose", "--output-format", "stream-json", "--dangerously-skip-permissions",
            "--no-session-persistence", "--setting-sources", "user", "--strict-mcp-config",
            "--disable-slash-commands", "--tools", ",".join(self.config.tools), "--model", ctx.model,
            *self.config.args,
        ]  # fmt: skip

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        home = f"{ctx.home}/claude-code"
        return {
            **_SWITCHES,
            "CLAUDE_CONFIG_DIR": home,
            "CLAUDE_CODE_TMPDIR": home,
            "CLAUDE_ENV_FILE": f"{home}/env.sh",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.config.max_tokens),
            "CLAUDE_CODE_MAX_RETRIES": str(self.config.retries),
            "ANTHROPIC_BASE_URL": ctx.root_url,
            "ANTHROPIC_API_KEY": ctx.api_key,
            **loopback_env(ctx),
        }

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.prompt.encode()

    def auxiliary(self, request: ChatRequest) -> str | None:
        """Return "side call" for a call without tools, as its tools for the web make."""
        return None if request.tools else "side call"

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of `--output-format stream-json`."""
        said = json_line(line) or {}
        match said.get("type"):
            case "assistant" | "user" as role:  # texts of the role `user` are its own words to the model
                text: EventKind = "info" if role == "user" else "error" if said.get("error") else "text"
                return tuple(events_of_blocks(as_mapping(said.get("message")).get("content"), text))
            case "result":
                return (make_event("error", said.get("result"), fatal=True),) if said.get("is_error") else ()
            case "system" if said.get("subtype") == "api_retry":
                why = said.get("error_status") or said.get("error")
                retry = f"retry {said.get('attempt')} of {said.get('max_retries')}: {why}"
                return (make_event("info", retry),)
            case str():
                return ()
        return odd_line(line)

    def failure(self, ended: AgentExit) -> str | None:
        """Return why it failed. Replies that were cut at their token limit end it, but are the policy's."""
        cut = ended.last_error is not None and "output token maximum" in ended.last_error.text
        return None if cut else super().failure(ended)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `claude-code`."""
    return [Component("claude-code", ClaudeCode, ClaudeCodeConfig, "Claude Code, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(lambda: ClaudeCode(ClaudeCodeConfig(accept_license=True)))
