"""The agent `gemini-cli`: Gemini CLI in headless mode, or as an agent of the Agent Client Protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pydantic import Field

from swe_agents.node_agent import NodeAgent, NodeAgentConfig
from swe_agents.side_calls import asks_for_summary, side_call
from swe_core import AgentContext, AgentEvent, AgentSpec, ChatRequest, Component, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, json_line, make_event, odd_line
from swe_core.bundles import NpmPackage, bundle_checks, loopback_env, merged

PACKAGE = NpmPackage(
    name="@google/gemini-cli",
    version="0.61.0",
    sha256="bc4efa5c925c4430105b552820ed3164bbeffa9dc227990fc922f954733bcd7d",
    tree="1eeb4864ca127ca512025eaddd2eb7faa340bdf49520d952c2123f08e6f73c39",
    into="gemini-cli",
    keep=("package.json", "bundle"),
)
TOOLS = (
    "list_directory", "read_file", "grep_search", "glob", "replace", "write_file", "run_shell_command",
    "list_background_processes", "read_background_output", "update_topic",
)  # fmt: skip
_NEVER = 1_000_000_000
_FLAGS = [
    # From 30,000 tokens on it masks old tool results, which rewrites the history. Only this flag ends that.
    {"flagId": 45758818, "intValue": str(_NEVER)},
    {"flagId": 45773134, "intValue": str(24 * 3600)},  # its timeout of a request, seconds
]
_OF_THE_POLICY = ("The model returned ", "Model response was truncated")
"""Beginnings of the errors that mean an empty reply or a cut one."""


class GeminiCliConfig(NodeAgentConfig):
    """`[agent.gemini-cli]`. `[budget]` limits turns and tokens."""

    tools: tuple[str, ...] = Field(default=TOOLS, min_length=1, description="tools of the model")
    retries: int = Field(default=1, ge=0, le=9, description="retries of a failed LLM call")


class GeminiCli(NodeAgent):
    """Gemini CLI. Of a repository's files for agents it loads GEMINI.md and .gemini/.env, unconditionally."""

    name = "gemini-cli"
    title = "Gemini CLI"
    needs = "bash"
    version = PACKAGE.version
    dialect = "google"
    package = PACKAGE
    script = "bundle/gemini.js"

    def __init__(self, config: GeminiCliConfig | None = None, acp: bool = False) -> None:
        self.config: GeminiCliConfig = config or GeminiCliConfig()
        self.acp = acp

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return its settings and flags, without the token."""
        # Its commands inherit neither the endpoint nor any other variable whose name tells of a secret.
        redaction = {"enabled": True, "blocked": ["GOOGLE_GEMINI_BASE_URL", "GEMINI_EXP"]}
        settings = {
            "general": {"enableAutoUpdate": False, "maxAttempts": self.config.retries + 1},
            "privacy": {"usageStatisticsEnabled": False},
            # Compression rewrites the history that the policy saw, so it is off by default.
            "model": {"compressionThreshold": _NEVER, "disableLoopDetection": True},
            "tools": {"core": list(self.config.tools)},
            "skills": {"enabled": False},
            "advanced": {"ignoreLocalEnv": True},
            "security": {
                "auth": {"selectedType": "gemini-api-key"},
                "environmentVariableRedaction": redaction,
            },
        }
        return {
            f"{ctx.home}/.gemini/settings.json": json.dumps(merged(settings, self.config.settings)).encode(),
            f"{ctx.home}/flags.json": json.dumps({"flags": _FLAGS}).encode(),
        }

    def command(self, ctx: AgentContext) -> Sequence[str]:
        mode = ["--acp"] if self.acp else ["--output-format", "stream-json"]
        # --skip-trust takes effect after the repository's own settings have been passed over.
        return [*self.program(ctx), "--yolo", "--skip-trust", f"--model={ctx.model}", *mode]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        return {
            "GEMINI_CLI_HOME": ctx.home,
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GEMINI_EXP": f"{ctx.home}/flags.json",
            "GOOGLE_GEMINI_BASE_URL": ctx.root_url,
            "GEMINI_API_KEY": ctx.api_key,
            **loopback_env(ctx),
        }

    def auxiliary(self, request: ChatRequest) -> str | None:
        return side_call(request)

    def summary(self, request: ChatRequest) -> bool:
        return asks_for_summary(request)

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of its stream of JSON, which shows no reasoning."""
        said = json_line(line) or {}
        match said.get("type"):
            case "init" | "message" if said.get("role") != "assistant":
                return ()
            case "message":
                return (make_event("text", said.get("content"), partial=True),)
            case "tool_use":
                return (make_event("tool_call", said.get("parameters"), said.get("tool_name")),)
            case "tool_result":
                tool, separator, _ = str(said.get("tool_id")).partition("__")
                return (make_event("tool_result", said.get("output"), tool if separator else None),)
            case "error" if said.get("severity") == "error":
                text = str(said.get("message"))
                return (make_event("error", text, fatal=not text.startswith(_OF_THE_POLICY)),)
            case "result":
                error = as_mapping(said.get("error"))
                return (make_event("error", error.get("message"), fatal=True),) if error else ()
        return odd_line(line)


create_acp = partial(GeminiCli, acp=True)
"""Create Gemini CLI as an agent of the Agent Client Protocol."""


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `gemini-cli`."""
    return [Component("gemini-cli", GeminiCli, GeminiCliConfig, "Gemini CLI, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(GeminiCli)
