"""The agent `codex`: Codex CLI, by `codex exec`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from swe_agents.binaries import CODEX
from swe_core import AgentContext, AgentEvent, AgentExit, AgentSpec, Component, Config, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, as_mappings, json_line, make_event, odd_line
from swe_core.bundles import BundledAgent, Node, Recipe, bundle_checks, for_this_machine, loopback_env, merged

TOKEN = "SWE_LLM_TOKEN"  # noqa: S105 (the name of a variable)
_DAY_MS = 24 * 3600 * 1000
_OFF = ("apps", "goals", "hooks", "plugins", "shell_snapshot", "unbounded_connection_retries", "view_image")
_CUT = "Incomplete response returned, reason: max_output_tokens"


class CodexConfig(Config):
    """`[agent.codex]`. `[budget]` limits turns and tokens."""

    model: str = Field(
        default="",
        description="model whose prompt and tools Codex uses, such as gpt-5.5 with a tool `apply_patch`; "
        "unset: its prompt for unknown models, which edit by shell commands",
    )
    retries: int = Field(default=1, ge=0, le=100, description="retries of a failed LLM call")
    settings: dict[str, Any] = Field(default_factory=dict, description="values for its config.toml")


class Codex(BundledAgent):
    """Codex, with the rollout's endpoint as its only provider. It loads no file for agents."""

    name = "codex"
    title = "Codex"
    version = CODEX["x86_64"].version.partition("-")[0]
    dialect = "responses"

    def __init__(self, config: CodexConfig | None = None) -> None:
        self.config = config or CodexConfig()

    def recipe(self) -> Recipe:
        return Recipe(self.name, (for_this_machine(CODEX, self.name), Node()))  # Node for the relay

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return config.toml, without the token."""
        import tomlkit  # slow, and every command loads this module

        provider = {
            "name": "rollout",
            "base_url": ctx.base_url,
            "env_key": TOKEN,
            "wire_api": "responses",
            "request_max_retries": self.config.retries,
            "stream_max_retries": self.config.retries,
            "stream_idle_timeout_ms": _DAY_MS,
        }
        settings: dict[str, Any] = {
            "model_provider": "rollout",
            "model_context_window": 10_000_000,
            # Compaction rewrites the history that the policy saw, so it is off by default.
            "model_auto_compact_token_limit": 9_000_000,
            "model_reasoning_summary": "none",
            "project_doc_max_bytes": 0,  # AGENTS.md
            "allow_login_shell": False,  # it would replace the image's PATH
            "check_for_update_on_startup": False,
            "web_search": "disabled",
            "analytics": {"enabled": False},
            "features": dict.fromkeys(_OFF, False),
            "agents": {"enabled": False},
            "skills": {"include_instructions": False, "bundled": {"enabled": False}},
            "tools": {"experimental_request_user_input": {"enabled": False}},
            "shell_environment_policy": {"exclude": [TOKEN, "TMPDIR"]},
            "model_providers": {"rollout": provider},
        }
        written = tomlkit.dumps(merged(settings, self.config.settings))
        return {f"{ctx.home}/codex/config.toml": written.encode()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return [
            f"{ctx.asset(self.name)}/codex/{for_this_machine(CODEX, self.name).executable[0]}",
            "exec", "--json", "--ephemeral", "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox", "--model", self.config.model or ctx.model, "-",
        ]  # fmt: skip

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        """Return its folders and the token. It offers its command `apply_patch` only outside of TMPDIR."""
        home = f"{ctx.home}/codex"
        return {"CODEX_HOME": home, "TMPDIR": f"{home}/tmp", TOKEN: ctx.api_key, **loopback_env(ctx)}

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.prompt.encode()

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of `codex exec --json`. Of reasoning, it has summaries only."""
        said = json_line(line) or {}
        item = as_mapping(said.get("item"))
        match said.get("type"), item.get("type"):
            case "item.completed", "agent_message":
                return (make_event("text", item.get("text")),)
            case "item.completed", "reasoning":
                return (make_event("reasoning", item.get("text")),)
            case "item.started", "command_execution":
                return (make_event("tool_call", item.get("command"), "exec_command"),)
            case "item.completed", "command_execution":
                return (make_event("tool_result", item.get("aggregated_output"), "exec_command"),)
            case "item.started", "file_change":
                return (make_event("tool_call", _changed(item), "apply_patch"),)
            case "item.completed", "file_change":
                return (make_event("tool_result", item.get("status"), "apply_patch"),)
            case "item.completed", "error":  # a warning
                return (make_event("info", item.get("message")),)
            case "error" | "turn.failed" as kind, _:
                error = as_mapping(said.get("error")) or said
                return (make_event("error", _sentence(error.get("message")), fatal=kind == "turn.failed"),)
            case str(), _:
                return ()
        return odd_line(line)

    def failure(self, ended: AgentExit) -> str | None:
        """Return why it failed. A reply that was cut at its token limit ends it, but is the policy's."""
        cut = ended.last_error is not None and ended.last_error.text == _CUT
        return None if cut else super().failure(ended)


def _changed(item: Mapping[str, Any]) -> str:
    """Return the kinds and paths of the changes of files."""
    changes = as_mappings(item.get("changes"))
    return "\n".join(f"{change.get('kind')} {change.get('path')}" for change in changes)


def _sentence(message: object) -> object:
    """Return the sentence of an error whose message is the body of a refusal."""
    body = json_line(message) if isinstance(message, str) else None
    return as_mapping((body or {}).get("error")).get("message") or message


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `codex`."""
    return [Component("codex", Codex, CodexConfig, "Codex CLI, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(Codex)
