"""AgentSpec: how to run a coding agent; AgentContext, AgentEvent, AgentExit, HostTool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from swe_core.api.engine import ChatRequest
from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Asset, Sandbox
from swe_core.api.task import Task

Arguments = TypeVar("Arguments", bound=BaseModel)
DialectName = Literal["chat", "responses", "messages", "google"]
"""A wire format: OpenAI's chat completions and Responses, Anthropic's Messages, Google's Gemini API."""
EventKind = Literal["text", "reasoning", "tool_call", "tool_result", "error", "info"]


class AgentEvent(BaseModel):
    """One line of a transcript.

    `fatal` marks an error that ended the agent, even where its exit code is 0. `partial` marks a piece of a
    text that the agent prints while it arrives: consecutive pieces of one kind are one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: EventKind
    text: str
    tool: str | None = None
    fatal: bool = False
    partial: bool = Field(default=False, exclude=True)


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The input of an `AgentSpec` for one rollout. Paths are paths inside the sandbox.

    Args:
        task: The whole task. Plugin code runs on the host and is trusted with all of it. The agent can read
            everything that the plugin puts into the sandbox.
        prompt: The user prompt (`swe_core.rollout.agent_run`).
        base_url: Base URL of the LLM endpoint inside the sandbox, ending in `/v1`.
        api_key: The rollout's token; in black-box mode the user's key.
        model: Model name for LLM calls.
        workdir: The repository.
        home: A private writable directory for the agent's own files.
        tools_url: URL of the host tools: GET lists them, POST `{tools_url}/NAME` with a JSON object of
            arguments calls one. "" in black-box mode.
        environment: Variables that the task's set-up lines export, such as the PATH of its conda environment.
            Every command of the agent gets them.
        exit_url: URL whose POST ends the agent, because its work is done. "" in black-box mode. Both URLs
            need `api_key` as bearer token.
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
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def root_url(self) -> str:
        """Return `base_url` without `/v1`, for agents that append a version themselves."""
        return self.base_url.removesuffix("/v1")

    def asset(self, name: str) -> str:
        """Return the path of the asset `name` inside the sandbox."""
        return f"{ASSETS_DIR}/{name}"


@dataclass(frozen=True, slots=True)
class AgentExit:
    """How the agent's process ended.

    Args:
        exit_code: Exit code of the process; 128+N where signal N killed it.
        last_error: The last event of kind `error`, if only `info` events follow it, else None.
        stderr_tail: The end of standard error, at most 4,000 characters.
    """

    exit_code: int
    last_error: AgentEvent | None
    stderr_tail: str


@dataclass(frozen=True, slots=True)
class HostTool(Generic[Arguments]):
    """A function on the host that an agent may call from its sandbox.

    Args:
        name: Letters, digits, `_` and `-`.
        description: What the tool does, for the model.
        arguments: Model of the arguments. The agent gets its JSON schema; calls that do not fit are refused.
        run: Runs the tool on the host, with arguments from an untrusted sandbox, and returns text for the
            model. The text must contain nothing of a grade. If `run` raises, the agent gets a generic error
            and the rollout continues.
    """

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[Arguments], Awaitable[str]]


class AgentSpec(ABC):
    """How to run one coding agent, unmodified.

    The methods run on the host. The rollout loop puts their results into the sandbox.
    """

    name: str
    version: str = ""
    dialect: DialectName | None = "chat"
    """The agent's LLM dialect; None for an agent without LLM calls."""
    calls_tools: bool = True
    """Whether it needs tool calls of the model; False for one that reads the text of replies."""

    def assets(self) -> Sequence[Asset]:
        """Return the bundles that the agent needs in the sandbox, built on the host and cached.

        Called in a thread, once per run. A sandbox never installs from a registry.
        """
        return ()

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        """Return small files to write into the sandbox first: absolute path → content (mode 0600)."""
        return {}

    @abstractmethod
    def command(self, ctx: AgentContext) -> Sequence[str]:
        """Return the argv that runs the agent to its end in `ctx.workdir`."""

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        """Return the environment of the agent's process, in addition to `ctx.environment`.

        Set no variable that the agent's children would use too, such as OPENAI_BASE_URL: the LLM calls of a
        test suite would become part of the trace.
        """
        return {}

    def stdin(self, ctx: AgentContext) -> bytes | None:
        """Return the agent's standard input; None is an empty one."""
        return None

    def tools(self, ctx: AgentContext) -> Sequence[HostTool[Any]]:
        """Return the host tools of this rollout, behind `ctx.tools_url`. Called once per rollout."""
        return ()

    def auxiliary(self, request: ChatRequest) -> str | None:
        """Return what an LLM call is for, such as "title", if it is no part of the policy's work, else None.

        Such a call is answered and recorded. It counts as no turn of the budget, and its tokens are dropped
        from training for this reason. Must not raise for any request.
        """
        return None

    def summary(self, request: ChatRequest) -> bool:
        """Return whether an LLM call asks for the summary of a compaction, from which the agent continues.

        Such a call is the policy's work. A trainer may leave its tokens out, and counts them. Not called for
        an auxiliary one. Must not raise for any request.
        """
        return False

    def own(self, request: ChatRequest) -> bool:
        """Return whether an LLM call begins a conversation of the agent's own, such as one of a sub-agent.

        Override it for conversations that the requests do not show to be the agent's: those whose first
        message is no argument of an offered tool, and that repeat neither the prompt nor a reply. Compare
        the system prompt; what it returns True for is trained. Must not raise for any request.
        """
        return False

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Convert one line of the agent's stdout to transcript events. Must not raise for any line."""
        return (AgentEvent(kind="text", text=line),) if line.strip() else ()

    def failure(self, ended: AgentExit) -> str | None:
        """Return one sentence where the agent failed, else None.

        Override it for agents that may fail with exit code 0.
        """
        if ended.exit_code == 0:
            return None
        tail = ended.stderr_tail.strip().splitlines()
        said = f": {tail[-1]}" if tail else ""
        return f"the agent {self.name!r} exited with code {ended.exit_code}{said}"


class AgentConsole(Protocol):
    """A running agent whose standard input is open."""

    def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of its standard output, until its process has ended. Callers may call this once."""
        ...

    async def send(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            SandboxError: It does not read, or its sandbox failed.
        """
        ...


class AgentDialogue(Protocol):
    """What an `InteractiveAgent` holds its conversation with."""

    @property
    def sandbox(self) -> Sandbox:
        """The agent's sandbox, for an agent whose own loop is elsewhere and that starts no command."""
        ...

    def start(self) -> AbstractAsyncContextManager[AgentConsole]:
        """Start the agent's command; leaving the context kills it. A resumed agent is started again."""
        ...

    def record(self, event: AgentEvent) -> None:
        """Add an event to the transcript."""
        ...

    async def over(self) -> None:
        """Wait until a budget is spent or the agent has submitted its work."""
        ...


class InteractiveAgent(AgentSpec):
    """An agent that the host talks to over its standard input and output."""

    @abstractmethod
    async def converse(self, ctx: AgentContext, dialogue: AgentDialogue) -> None:
        """Take the agent from its start to its end.

        Raises:
            AgentError: The agent failed. It is no failure if a budget was spent.
        """

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return nothing: `converse` records the events."""
        return ()

    def failure(self, ended: AgentExit) -> str | None:
        """Return the error of `converse`."""
        if ended.exit_code == 0:
            return None
        return ended.last_error.text if ended.last_error else f"the agent {self.name!r} failed"
