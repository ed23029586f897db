"""The agent `opencode`: OpenCode, by `opencode run`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field

from swe_agents.binaries import OPENCODE
from swe_agents.npm_dependencies import ripgrep
from swe_core import AgentContext, AgentEvent, AgentSpec, ChatRequest, Component, Config, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, json_line, make_event, odd_line
from swe_core.bundles import BundledAgent, Node, Recipe, bundle_checks, for_this_machine, loopback_env, merged

_START = 'PATH="$0/ripgrep/bin:$PATH" exec "$0/opencode/bin/opencode" "$@"'
"""Starts it with its program for searches, which it would download."""
_DENIED = ("question", "skill", "task", "todowrite", "webfetch", "websearch")
_SWITCHES = (
    "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_CLAUDE_CODE", "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS", "OPENCODE_DISABLE_LSP_DOWNLOAD", "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_PROJECT_CONFIG", "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER", "OPENCODE_PURE",
)  # fmt: skip
_TITLE = "You are a title generator"
_FOLDERS = ("cache", "config", "data", "state")
_ENDS = ("stop", "tool-calls")


class OpenCodeConfig(Config):
    """`[agent.opencode]`. `[budget]` limits turns and tokens."""

    max_tokens: int = Field(default=8192, gt=0, description="tokens that it requests per reply")
    settings: dict[str, Any] = Field(default_factory=dict, description="values for its opencode.json")


class OpenCode(BundledAgent):
    """OpenCode, with the rollout's endpoint as its only provider.

    It loads no file for agents. Plugins in a repository's `.opencode` run, which nothing switches off.
    """

    name = "opencode"
    title = "OpenCode"
    needs = "glibc"
    version = OPENCODE["x86_64"].version
    dialect = "chat"

    def __init__(self, config: OpenCodeConfig | None = None, acp: bool = False) -> None:
        self.config = config or OpenCodeConfig()
        self.acp = acp

    def recipe(self) -> Recipe:
        # Node is for the relay.
        return Recipe(self.name, (for_this_machine(OPENCODE, self.name), ripgrep(self.name), Node()))

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return opencode.json, the token in a file of its own, and a lock of npm.

        A variable with the token would be inherited by its commands. With the lock, it does not install its
        library for plugins.
        """
        home, folder = _home(ctx), f"{_home(ctx)}/config/opencode"
        model = {"name": ctx.model, "limit": {"context": 10_000_000, "output": self.config.max_tokens}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": ctx.base_url, "apiKey": f"{{file:{home}/token}}", "timeout": False},
            "models": {ctx.model: model},
        }
        settings: dict[str, Any] = {
            "provider": {"rollout": provider},
            "model": f"rollout/{ctx.model}",
            "small_model": f"rollout/{ctx.model}",
            "permission": {"*": "allow", **dict.fromkeys(_DENIED, "deny")},
            # Compaction rewrites the history that the policy saw, so it is off by default.
            "compaction": {"auto": False, "prune": False},
            "share": "disabled",
            "snapshot": False,
        }
        lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": self.version}}}}
        return {
            f"{folder}/opencode.json": json.dumps(merged(settings, self.config.settings)).encode(),
            f"{folder}/package-lock.json": json.dumps(lock).encode(),
            f"{folder}/node_modules/.package-lock.json": b"{}",
            f"{home}/token": ctx.api_key.encode(),
        }

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """Return the command. With a title given, it does not ask the model for one."""
        run = ["run", "--format", "json", "--auto", "--thinking", "--title", "task"]
        return ["sh", "-c", _START, ctx.asset(self.name), *(["acp"] if self.acp else run)]

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        folders = {f"XDG_{kind.upper()}_HOME": f"{_home(ctx)}/{kind}" for kind in _FOLDERS}
        kept = {} if self.acp else {"OPENCODE_DB": ":memory:"}  # a session is loaded again from its file
        return {**folders, **dict.fromkeys(_SWITCHES, "1"), **kept, **loopback_env(ctx)}

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.prompt.encode()

    def auxiliary(self, request: ChatRequest) -> str | None:
        """Return "title" for the request that names a session."""
        named = any(message["content"].startswith(_TITLE) for message in request.messages[:1])
        return "title" if named and not request.tools else None

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of `--format json`."""
        said = json_line(line) or {}
        part = as_mapping(said.get("part"))
        match said.get("type"):
            case "text" | "reasoning" as kind:
                return (make_event(kind, part.get("text")),)
            case "tool_use":
                state, tool = as_mapping(part.get("state")), part.get("tool")
                result = state.get("error") if state.get("status") == "error" else state.get("output")
                call = make_event("tool_call", state.get("input"), tool)
                return call, make_event("tool_result", result, tool)
            case "step_finish" if part.get("reason") == "length":
                return (make_event("info", "the reply was cut off at its token limit"),)
            case "step_finish" if part.get("reason") not in _ENDS:
                return (make_event("error", f"a reply ended as {part.get('reason')!r}", fatal=True),)
            case "error":
                error = as_mapping(said.get("error"))
                text = as_mapping(error.get("data")).get("message") or error.get("name")
                return (make_event("error", text, fatal=True),)
            case str():
                return ()
        return odd_line(line)


def _home(ctx: AgentContext) -> str:
    return f"{ctx.home}/opencode"


create_acp = partial(OpenCode, acp=True)
"""Create OpenCode as an agent of the Agent Client Protocol."""


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `opencode`."""
    return [Component("opencode", OpenCode, OpenCodeConfig, "OpenCode, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(OpenCode)
