"""The agent `qwen-code`: Qwen Code in headless mode, or as an agent of the Agent Client Protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pydantic import Field

from swe_agents.node_agent import NodeAgent, NodeAgentConfig
from swe_agents.side_calls import asks_for_summary, side_call
from swe_core import AgentContext, AgentEvent, AgentSpec, ChatRequest, Component, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, events_of_blocks, json_line, make_event, odd_line
from swe_core.bundles import NpmPackage, bundle_checks, loopback_env, merged

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
TOOLS = ("read_file", "grep_search", "glob", "edit", "write_file", "notebook_edit", "run_shell_command")
OTHER_TOOLS = (
    "agent", "ask_user_question", "enter_plan_mode", "enter_worktree", "exit_plan_mode", "exit_worktree",
    "get_goal", "list_agents", "monitor", "read_mcp_resource", "report_findings", "send_message", "skill",
    "task_stop", "tool_call", "tool_search", "update_goal", "web_fetch", "zoom_image",
)  # fmt: skip
TOKEN = "QWEN_SERVER_TOKEN"  # noqa: S105 (the name of a variable)
"""Variable with the rollout's token: one that Qwen Code takes out of the environment of its commands."""
_OF_THE_POLICY = ("[API Error: Model stream ended with empty response text", "Loop detection halted the run")
"""Beginnings of the errors that mean five empty replies, or five equal calls."""


class QwenCodeConfig(NodeAgentConfig):
    """`[agent.qwen-code]`. `[budget]` limits turns and tokens."""

    tools: tuple[str, ...] = Field(default=TOOLS, min_length=1, description="tools of the model")
    max_tokens: int = Field(default=8192, gt=0, description="tokens that it requests per reply")
    context_window: int = Field(
        default=10_000_000, gt=0, description="context tokens that it assumes; it compresses at 85 % of them"
    )


class QwenCode(NodeAgent):
    """Qwen Code. A repository's files for agents are not loaded, since the repository is not trusted."""

    name = "qwen-code"
    title = "Qwen Code"
    needs = "bash"
    version = PACKAGE.version
    package = PACKAGE
    script = "cli.js"

    def __init__(self, config: QwenCodeConfig | None = None, acp: bool = False) -> None:
        self.config: QwenCodeConfig = config or QwenCodeConfig()
        self.acp = acp

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
        disabled = [name for name in TOOLS + OTHER_TOOLS if name not in self.config.tools]
        settings = {
            "$version": 4,
            # While it keeps a host from sleeping, it loses the output of one short command in six.
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
            "memory": {"enableManagedAutoMemory": False},
            "permissions": {"allow": list(self.config.tools)},
            "tools": {"disabled": disabled},
            "skills": {"disabledLevels": ["project", "user", "extension", "bundled"]},
            "experimental": {"cron": False, "artifact": False},
        }
        return {f"{ctx.home}/settings.json": json.dumps(merged(settings, self.config.settings)).encode()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        mode = ["--acp"] if self.acp else ["--output-format", "stream-json"]
        return [*self.program(ctx, "--expose-gc"), "--model", ctx.model, *mode]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {
            "QWEN_HOME": ctx.home,
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_STREAM_MAX_LIFETIME_MS": "0",
            TOKEN: ctx.api_key,
            **loopback_env(ctx),
        }

    def auxiliary(self, request: ChatRequest) -> str | None:
        return side_call(request)

    def summary(self, request: ChatRequest) -> bool:
        return asks_for_summary(request)

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of its stream of JSON."""
        said = json_line(line) or {}
        match said.get("type"):
            case "assistant":
                return tuple(events_of_blocks(as_mapping(said.get("message")).get("content")))
            case "user":
                return tuple(events_of_blocks(as_mapping(said.get("message")).get("content"), text="info"))
            case "result":
                text = as_mapping(said.get("error")).get("message")
                fatal = not str(text).startswith(_OF_THE_POLICY)
                return (make_event("error", text, fatal=fatal),) if said.get("is_error") is True else ()
            case "system" | "stream_event":
                return ()
        return odd_line(line)


create_acp = partial(QwenCode, acp=True)
"""Create Qwen Code as an agent of the Agent Client Protocol."""


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `qwen-code`."""
    return [Component("qwen-code", QwenCode, QwenCodeConfig, "Qwen Code, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(QwenCode)
