"""The agent `kimi-code`: Kimi Code in print mode, or as an agent of the Agent Client Protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tomlkit
from pydantic import Field

from swe_agents.node_agent import NodeAgent, NodeAgentConfig
from swe_agents.npm_dependencies import QRCODE, WS, ripgrep
from swe_core import AgentContext, AgentEvent, AgentExit, AgentSpec, Component, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, as_mappings, json_line, make_event, odd_line
from swe_core.bundles import NpmPackage, bundle_checks, loopback_env, merged
from swe_core.errors import AgentError

PACKAGE = NpmPackage(
    name="@moonshot-ai/kimi-code",
    version="2.1.0",
    sha256="25a081b7783806226434aab6c40462192d3f9e362391cba7b068af02d8b5fd71",
    tree="94b028bb367ea24c302ad56dc37346e7b979274eda72e8daa69bb2b14ec82daa",
    into="kimi-code",
    keep=("package.json", "dist"),
)
TOOLS = ("Bash", "Read", "Write", "Edit", "Grep", "Glob", "TodoList")
_WITH_RIPGREP = 'PATH="$PATH:$0" exec "$@"'
"""Script that runs a command with a further folder of programs."""
_LONGEST_PROMPT = 131_000
"""Bytes that fit into one argument on Linux (MAX_ARG_STRLEN), less the option's name."""
_ERROR = re.compile(r"^error: (.*)$", re.MULTILINE)
_OF_THE_POLICY = re.compile(r"The API returned an? (empty response|response containing only).*finishReason=")


class KimiCodeConfig(NodeAgentConfig):
    """`[agent.kimi-code]`. `[budget]` limits turns and tokens."""

    tools: tuple[str, ...] = Field(default=TOOLS, min_length=1, description="tools of the model")
    max_tokens: int = Field(default=8192, gt=0, description="tokens that it requests per reply")
    context_window: int = Field(
        default=10_000_000, gt=0, description="context tokens that it assumes; it compacts at 99 % of them"
    )
    retries: int = Field(default=1, ge=0, description="retries of a failed LLM call")


class KimiCode(NodeAgent):
    """Kimi Code. Of a repository's files for agents it loads AGENTS.md: nothing switches that off."""

    name = "kimi-code"
    title = "Kimi Code"
    needs = "bash"
    version = PACKAGE.version
    package = PACKAGE
    script = "dist/main.mjs"

    def __init__(self, config: KimiCodeConfig | None = None, acp: bool = False) -> None:
        self.config: KimiCodeConfig = config or KimiCodeConfig()
        self.acp = acp

    def dependencies(self) -> Sequence[NpmPackage]:
        return WS, *QRCODE, ripgrep(self.name)

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return config.toml. It has the token, because commands inherit each variable of Kimi Code."""
        attempts = self.config.retries + 1
        model = {
            "provider": "rollout",
            "model": ctx.model,
            "max_context_size": self.config.context_window,
            "max_output_size": self.config.max_tokens,
        }
        settings = {
            "default_model": "policy",
            "telemetry": False,
            "providers": {"rollout": {"type": "openai", "base_url": ctx.base_url, "api_key": ctx.api_key}},
            "models": {"policy": model},
            "loop_control": {"max_attempts_per_step": attempts, "compaction_trigger_ratio": 0.99},
            "background": {"print_background_mode": "exit"},
            "permission": {"dangerous_command_guard": False},
            "tools": {"enabled": list(self.config.tools)},
        }
        return {f"{ctx.home}/config.toml": tomlkit.dumps(merged(settings, self.config.settings)).encode()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        if not self.acp and (size := len(ctx.prompt.encode())) > _LONGEST_PROMPT:
            raise AgentError(
                f"the prompt has {size:,} bytes, and {self.title} takes at most {_LONGEST_PROMPT:,}: choose "
                "another agent, or the agent 'acp' with agent.acp.agent = 'kimi-code'"
            )
        mode = ["acp"] if self.acp else [f"--prompt={ctx.prompt}", "--output-format", "stream-json"]
        return ["sh", "-c", _WITH_RIPGREP, f"{ctx.asset(self.name)}/ripgrep/bin", *self.program(ctx), *mode]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {
            "KIMI_CODE_HOME": ctx.home,
            "KIMI_CODE_NO_AUTO_UPDATE": "true",
            "KIMI_CODE_REPEAT_BREAKER": "false",
            "KIMI_DISABLE_TELEMETRY": "true",
            **loopback_env(ctx),
        }

    def stdin(self, ctx: AgentContext) -> None:
        return None

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of its stream of JSON, which shows no reasoning and no error."""
        said = json_line(line) or {}
        match said.get("role"):
            case "assistant":
                return tuple(_reply(said))
            case "tool":
                return (make_event("tool_result", said.get("content")),)
            case "meta":
                return ()
        return odd_line(line)

    def failure(self, ended: AgentExit) -> str | None:
        """Return why it failed. The error is on standard error; a reply without text is the policy's."""
        found = _ERROR.findall(ended.stderr_tail)
        if ended.exit_code != 1 or not found:
            return super().failure(ended)
        error = found[-1].removeprefix("failed to run prompt: ")
        return None if _OF_THE_POLICY.search(error) else f"{self.title} ended with an error: {error}"


def _reply(said: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if said.get("content"):
        yield make_event("text", said["content"])
    for call in as_mappings(said.get("tool_calls")):
        function = as_mapping(call.get("function"))
        yield make_event("tool_call", function.get("arguments"), function.get("name"))


create_acp = partial(KimiCode, acp=True)
"""Create Kimi Code as an agent of the Agent Client Protocol."""


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `kimi-code`."""
    return [Component("kimi-code", KimiCode, KimiCodeConfig, "Kimi Code, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(KimiCode)
