"""The agent `mini-swe-agent`: one tool, `bash`, and a linear history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from swe_agents.python_agent import PythonAgent, PythonAgentConfig
from swe_core import AgentContext, AgentEvent, AgentSpec, Component, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, as_mappings, json_line, make_event, odd_line
from swe_core.bundles import bundle_checks, merged

_DAY = 24 * 3600
"""Timeout longer than any rollout, because the host limits the time of a reply."""


class MiniSweAgentConfig(PythonAgentConfig):
    """`[agent.mini-swe-agent]`. `[budget]` limits turns and tokens."""

    command_timeout: int = Field(default=600, gt=0, description="seconds for one command of the model")
    retries: int = Field(default=0, ge=0, description="retries of a failed LLM call; for black-box mode")
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="values over the agent's own config mini.yaml, such as agent.system_template",
    )


class MiniSweAgent(PythonAgent):
    """mini-swe-agent. A reply without a command is answered with an error; three in a row end it."""

    name = "mini-swe-agent"
    title = "mini-swe-agent"
    version = "2.4.6"
    module = "mini_swe_agent"
    pythons = ("3.12", "3.11", "3.13")

    def __init__(self, config: MiniSweAgentConfig | None = None) -> None:
        self.config: MiniSweAgentConfig = config or MiniSweAgentConfig()

    def settings(self, ctx: AgentContext) -> Mapping[str, Any]:
        own = {
            "agent": {"cost_limit": 0},
            "environment": {"timeout": self.config.command_timeout},
            "model": {
                "model_name": f"openai/{ctx.model}",
                "cost_tracking": "ignore_errors",
                "model_kwargs": {"api_base": ctx.base_url, "timeout": _DAY, "max_retries": 0},
            },
        }
        return merged(own, self.config.settings)

    def variables(self, ctx: AgentContext) -> Mapping[str, str]:
        own = {"MSWEA_GLOBAL_CONFIG_DIR": f"{ctx.home}/mini-swe-agent", "MSWEA_SILENT_STARTUP": "1"}
        return {**super().variables(ctx), **own}

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        attempts = str(self.config.retries + 1)
        return {**super().env(ctx), "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": attempts}

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one message of its history."""
        message = json_line(line)
        if message is None:
            return odd_line(line)
        more = as_mapping(message.get("extra"))
        match message.get("role"):
            case "assistant":
                return tuple(_reply(message))
            case "tool":
                return (make_event("tool_result", message.get("content"), "bash"),)
            case "user" if more.get("interrupt_type"):  # the history omits the refused reply
                choices = as_mappings(as_mapping(more.get("response")).get("choices"))
                refused = [said for choice in choices for said in _reply(as_mapping(choice.get("message")))]
                return (*refused, make_event("info", message.get("content")))
            case "exit" if "exception_str" in more:
                return (make_event("error", more["exception_str"], fatal=True),)
            case "exit":
                return (make_event("info", f"ended: {more.get('exit_status')}"),)
        return ()


def _reply(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if reasoning := message.get("reasoning_content"):
        yield make_event("reasoning", reasoning)
    if text := message.get("content"):
        yield make_event("text", text)
    for call in as_mappings(message.get("tool_calls")):
        function = as_mapping(call.get("function"))
        yield make_event("tool_call", function.get("arguments"), function.get("name"))


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `mini-swe-agent`."""
    title = "mini-swe-agent, from a host-built bundle"
    return [Component("mini-swe-agent", MiniSweAgent, MiniSweAgentConfig, title)]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(MiniSweAgent)
