"""The agent `openhands`: the default agent of the OpenHands SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from swe_agents.python_agent import PythonAgent, PythonAgentConfig
from swe_core import AgentContext, AgentEvent, AgentSpec, ChatRequest, Component, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import as_mapping, as_mappings, json_line, make_event, odd_line
from swe_core.bundles import bundle_checks, merged

_DAY = 24 * 3600
"""Timeout longer than any rollout, because the host limits the time of a reply."""

_SUMMARY = "You are maintaining a context-aware state summary"
"""How the instructions for a summary of the history begin."""


class OpenHandsConfig(PythonAgentConfig):
    """`[agent.openhands]`. `[budget]` limits turns and tokens."""

    retries: int = Field(default=0, ge=0, description="retries of a failed LLM call; for black-box mode")
    stuck_detection: bool = Field(default=True, description="end an agent that repeats itself")
    condense_after: int | None = Field(
        default=None, ge=10, description="events after which the history is summarised; unset: never"
    )
    llm: dict[str, Any] = Field(default_factory=dict, description="values for the SDK's `LLM`")


class OpenHands(PythonAgent):
    """OpenHands. It loads no file of the repository for agents."""

    name = "openhands"
    title = "OpenHands"
    needs = "bash"
    version = "1.58.2"
    module = "openhands"
    pythons = ("3.12", "3.13")

    def __init__(self, config: OpenHandsConfig | None = None) -> None:
        self.config: OpenHandsConfig = config or OpenHandsConfig()

    def settings(self, ctx: AgentContext) -> Mapping[str, Any]:
        llm = {
            "model": f"openai/{ctx.model}",
            "base_url": ctx.base_url,
            "timeout": _DAY,
            "num_retries": self.config.retries,
            "reasoning_effort": None,
        }
        return {
            "llm": merged(llm, self.config.llm),
            "condense_after": self.config.condense_after,
            "stuck_detection": self.config.stuck_detection,
        }

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return the settings, and what keeps control sequences out of the results of commands."""
        return {**super().files(ctx), f"{ctx.home}/inputrc": b"set enable-bracketed-paste off\n"}

    def variables(self, ctx: AgentContext) -> Mapping[str, str]:
        return {**super().variables(ctx), "LOG_LEVEL": "ERROR", "OPENHANDS_SUPPRESS_BANNER": "1"}

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        own = {"INPUTRC": f"{ctx.home}/inputrc", "OH_PERSISTENCE_DIR": f"{ctx.home}/openhands"}
        return {**super().env(ctx), **own}

    def summary(self, request: ChatRequest) -> bool:
        """Return whether the SDK's condenser asks for a summary."""
        system = [one["content"] for one in request.messages[:1] if one["role"] == "system"]
        return any(text.startswith(_SUMMARY) for text in system)

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one event of the SDK."""
        said = json_line(line)
        if said is None or not isinstance(said.get("kind"), str):
            return odd_line(line)
        tool = said.get("tool_name")
        match said["kind"]:
            case "MessageEvent" if said.get("source") == "agent":
                return tuple(_reply(as_mapping(said.get("llm_message"))))
            case "ActionEvent":
                call = make_event("tool_call", as_mapping(said.get("tool_call")).get("arguments"), tool)
                return (*_reply({**said, "content": said.get("thought")}), call)
            case "ObservationEvent":
                seen = as_mapping(said.get("observation"))
                suffix = str(as_mapping(seen.get("metadata")).get("suffix", ""))
                return (make_event("tool_result", _text(seen.get("content")) + suffix, tool),)
            case "AgentErrorEvent":
                return (make_event("tool_result", said.get("error"), tool),)
            case "ConversationErrorEvent":
                return (make_event("error", f"{said.get('code')}: {said.get('detail')}", fatal=True),)
            case "End":
                return (make_event("info", f"ended: {said.get('status')}"),)
            case "Condensation":
                return (make_event("info", f"the history was summarised: {said.get('summary')}"),)
        return ()


def _reply(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if reasoning := message.get("reasoning_content"):
        yield make_event("reasoning", reasoning)
    if text := _text(message.get("content")):
        yield make_event("text", text)


def _text(content: object) -> str:
    return "\n".join(str(part.get("text", "")) for part in as_mappings(content))


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `openhands`."""
    return [Component("openhands", OpenHands, OpenHandsConfig, "OpenHands, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(OpenHands)
