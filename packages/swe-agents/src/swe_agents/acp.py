"""The agent `acp`: any agent that speaks the Agent Client Protocol (agentclientprotocol.com), version 1.

The host is the client. It answers permission requests by policy, takes turns, cancels when a budget is spent,
and resumes the session of an agent that has exited.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from swe_core import AgentContext, AgentSpec, Asset, ChatRequest, Component, Config, hookimpl
from swe_core.api.agent import AgentDialogue, DialectName, InteractiveAgent
from swe_core.errors import AgentError, ConfigError

AGENTS = {
    "opencode": "swe_agents.opencode:create_acp",
    "gemini-cli": "swe_agents.gemini_cli:create_acp",
    "qwen-code": "swe_agents.qwen_code:create_acp",
    "kimi-code": "swe_agents.kimi_code:create_acp",
}
"""Agents of this package that speak the protocol → a function that returns their `AgentSpec` in that mode."""
_AGAIN = "The session was interrupted. Go on."


class AcpConfig(Config):
    """`[agent.acp]`: one of `agent` and `command`."""

    agent: str | None = Field(default=None, description=f"an agent of swe-agents: {', '.join(AGENTS)}")
    command: str | None = Field(default=None, description="command of another agent, which the image has")
    env: dict[str, str] = Field(
        default_factory=dict,
        description="its variables; {base_url}, {root_url}, {api_key}, {model} and {home} are filled in",
    )
    dialect: DialectName = Field(default="chat", description="wire format of its LLM calls, with `command`")
    permissions: Literal["allow", "reject"] = Field(
        default="allow", description="answer to the agent's permission requests"
    )
    follow_ups: tuple[str, ...] = Field(default=(), description="prompts of further turns, after the task's")
    resumes: int = Field(default=1, ge=0, description="how often an agent that exits is resumed")


class AcpAgent(InteractiveAgent):
    """An agent that is driven by the Agent Client Protocol.

    Raises:
        ConfigError: Not exactly one of `agent` and `command` is set, or there is no such agent.
    """

    name = "acp"

    def __init__(self, config: AcpConfig) -> None:
        self.config = config
        if (config.agent is None) == (config.command is None):
            raise ConfigError(
                "the agent 'acp' drives another agent: set one of agent.acp.agent and agent.acp.command"
            )
        self._inner = _inner(config.agent) if config.agent is not None else None
        self.dialect = self._inner.dialect if self._inner else config.dialect
        self.version = self._inner.version if self._inner else ""

    def assets(self) -> Sequence[Asset]:
        return self._inner.assets() if self._inner else ()

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        return self._inner.files(ctx) if self._inner else {}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return self._inner.command(ctx) if self._inner else shlex.split(self.config.command or "")

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        known = {name: getattr(ctx, name) for name in ("base_url", "root_url", "api_key", "model", "home")}
        own = {name: _filled(value, known) for name, value in self.config.env.items()}
        return {**(self._inner.env(ctx) if self._inner else {}), **own}

    def auxiliary(self, request: ChatRequest) -> str | None:
        return self._inner.auxiliary(request) if self._inner else None

    def summary(self, request: ChatRequest) -> bool:
        return self._inner is not None and self._inner.summary(request)

    def own(self, request: ChatRequest) -> bool:
        return self._inner is not None and self._inner.own(request)

    async def converse(self, ctx: AgentContext, dialogue: AgentDialogue) -> None:
        """See `InteractiveAgent.converse`."""
        from swe_agents.acp_client import Ended, Session

        prompts = [ctx.prompt, *self.config.follow_ups]
        session = Session(dialogue, ctx.workdir, self.config.permissions)
        done = 0
        for left in range(self.config.resumes, -1, -1):
            try:
                async with session.open() as loaded:
                    if loaded and session.prompted:
                        prompts[done] = _AGAIN
                    elif not loaded:
                        done = 0
                    while done < len(prompts):
                        stopped = await session.prompt(prompts[done])
                        if stopped == "refusal":
                            raise AgentError(f"the agent {self._title!r} refused to go on")
                        done = len(prompts) if stopped == "cancelled" else done + 1
                break
            except Ended as error:
                if not left:
                    raise AgentError(f"the agent {self._title!r} exited in the middle of its work") from error

    @property
    def _title(self) -> str:
        return self.config.agent or shlex.split(self.config.command or "")[0]


def _inner(name: str) -> AgentSpec:
    from pydoc import locate

    if name not in AGENTS:
        raise ConfigError(
            f"agent.acp.agent is {name!r}; set it to one of {', '.join(AGENTS)}, or name another agent's "
            "command in agent.acp.command"
        )
    create = locate(AGENTS[name].replace(":", "."))
    agent: AgentSpec = create()  # type: ignore[operator]  # a function by AGENTS
    return agent


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `acp`."""
    return [Component("acp", AcpAgent, AcpConfig, "any agent that speaks the Agent Client Protocol")]
