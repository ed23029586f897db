"""The coding agent's side: AgentSpec, AgentContext, AgentEvent, AgentExit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Asset
from swe_core.api.task import Task

Arguments = TypeVar("Arguments", bound=BaseModel)
EventKind = Literal["text", "reasoning", "tool_call", "tool_result", "error", "info"]


class AgentEvent(BaseModel):
    """One line of a transcript, whatever the agent.

    `fatal` marks an error that ended the agent, even where its exit code is 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: EventKind
    text: str
    tool: str | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent is told about its rollout. Paths are paths inside the sandbox.

    Args:
        task: The whole task. Trusted plugin code runs on the host and sees all of it; what it puts into
            the sandbox the agent can read.
        prompt: The user prompt, built by the one prompt builder (`swe_core.rollout.agent_run`).
        base_url: Base URL of the LLM endpoint as seen from inside, ending in `/v1`.
        api_key: The rollout's own token (or, in black-box mode, the key that the user hands over).
        model: The model name to ask for.
        workdir: The repository.
        home: A private writable directory for the agent's own files.
        tools_url: Where the agent's host tools are: GET lists them, POST `{tools_url}/NAME` with a JSON
            object of arguments calls one; "" in black-box mode.
        exit_url: Where a POST says that the agent's work is done, so that it is ended; "" in black-box mode.
            Both want `api_key` as bearer token.
    """

    task: Task
    prompt: str
    base_url: str
    api_key: str
    model: str
    workdir: str
    home: str = HOME_DIR
    tools_url: str = ""
    exit_url: str = ""

    def asset(self, name: str) -> str:
        """The path at which the sandbox shows the asset `name`."""
        return f"{ASSETS_DIR}/{name}"


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How the agent's process ended.

    Args:
        exit_code: The process's own; 128+N where signal N killed it.
        last_error: The last event of kind `error` with nothing after it but `info`, else None.
        stderr_tail: The end of standard error, at most 4,000 characters.
    """

    exit_code: int
    last_error: AgentEvent | None
    stderr_tail: str


@dataclass(frozen=True, slots=True)
class HostTool(Generic[Arguments]):
    """Something of the host that an agent may call from inside its sandbox.

    Args:
        name: Letters, digits, `_` and `-`.
        description: What it does, for the model.
        arguments: What it takes; its JSON schema is offered, and calls that do not fit it are refused.
        run: Does it, and returns what the model reads. It runs on the host with arguments from an untrusted
            sandbox. Its result never carries anything of a grade. If it raises, the agent is told that the
            tool failed and no more, and the rollout goes on.
    """

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[Arguments], Awaitable[str]]


class AgentSpec(ABC):
    """How to run one coding agent, unmodified. A new agent is about fifty lines.

    The methods run on the host. What they return is put into the sandbox by the rollout loop.
    """

    name: str
    version: str = ""
    dialect: Literal["chat"] | None = "chat"
    """The LLM dialect it speaks; None for an agent that makes no LLM calls at all."""

    def assets(self) -> Sequence[Asset]:
        """The host-built bundles it needs inside; built and cached on first use, called in a thread once
        per run. No sandbox installs from a registry at rollout time."""
        return ()

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Small files written into the sandbox before the start: absolute path → content (mode 0600)."""
        return {}

    @abstractmethod
    def command(self, ctx: AgentContext) -> Sequence[str]:
        """The argv that runs the agent to its end in `ctx.workdir`."""

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        """Environment of the agent's process. Put no endpoint into variables that the agent's children
        would follow too, such as OPENAI_BASE_URL: a test suite that calls an LLM would join the trace."""
        return {}

    def stdin(self, ctx: AgentContext) -> bytes | None:
        """What the agent reads from standard input; None is an empty one."""
        return None

    def tools(self, ctx: AgentContext) -> Sequence[HostTool[Any]]:
        """What of the host this rollout's agent may call, over `ctx.tools_url`. Called once per rollout."""
        return ()

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Turn one line of the agent's stdout into transcript events. Must not raise on odd lines."""
        return (AgentEvent(kind="text", text=line),) if line.strip() else ()

    def failure(self, ended: AgentExit) -> str | None:
        """One sentence when the agent failed, None when it ended well. Override for agents whose exit
        code does not tell."""
        if ended.exit_code == 0:
            return None
        tail = ended.stderr_tail.strip().splitlines()
        said = f": {tail[-1]}" if tail else ""
        return f"the agent {self.name!r} exited with code {ended.exit_code}{said}"
