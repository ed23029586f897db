"""What the methods of an `AgentSpec` return, checked. See `contracts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, InstanceOf, StrictBool, StrictBytes, StrictStr, TypeAdapter

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, AgentSpec, HostTool
from swe_core.api.contracts import calling, checked, class_of, shown
from swe_core.api.engine import ChatRequest
from swe_core.api.sandbox import Asset
from swe_core.errors import AgentError

T = TypeVar("T")


def _program(argv: list[str]) -> list[str]:
    if not argv or not argv[0]:
        raise ValueError
    return argv


_ASSETS = TypeAdapter(list[InstanceOf[Asset]])
_FILES = TypeAdapter(dict[Annotated[StrictStr, Field(pattern="^/")], StrictBytes])
_COMMAND = TypeAdapter[list[str]](Annotated[list[StrictStr], AfterValidator(_program)])
_ENV = TypeAdapter(dict[StrictStr, StrictStr])
_STDIN = TypeAdapter[bytes | None](StrictBytes | None)
_TOOLS = TypeAdapter(list[InstanceOf[HostTool[Any]]])
_TEXT_OR_NONE = TypeAdapter[str | None](StrictStr | None)
_FLAG = TypeAdapter(StrictBool)
_EVENTS = TypeAdapter(list[InstanceOf[AgentEvent]])

# Each function raises `AgentError`: the method raised any other exception than a `SweError`, or returned
# something else than its declaration says.


def assets(agent: AgentSpec) -> tuple[Asset, ...]:
    """Return the agent's assets."""
    found = _called(agent, "assets", _ASSETS, "a list of Assets")
    return tuple(found)


def files(agent: AgentSpec, ctx: AgentContext) -> dict[str, bytes]:
    """Return the files to write into the sandbox first: absolute path → content."""
    expected = "a dict of absolute paths and bytes, such as {f'{ctx.home}/config.json': b'{}'}"
    return _called(agent, "files", _FILES, expected, ctx, show=_kind)


def command(agent: AgentSpec, ctx: AgentContext) -> list[str]:
    """Return the program that runs the agent, and its arguments."""
    expected = "a list of texts such as ['my-agent', '--print']"
    return _called(agent, "command", _COMMAND, expected, ctx)


def env(agent: AgentSpec, ctx: AgentContext) -> dict[str, str]:
    """Return the environment of the agent's process: the task's variables, and the agent's own."""
    expected = "a dict of texts such as {'MY_AGENT_URL': ctx.base_url}"
    own = _called(agent, "env", _ENV, expected, ctx, show=_kind)
    return {**ctx.environment, **own}


def stdin(agent: AgentSpec, ctx: AgentContext) -> bytes | None:
    """Return the agent's standard input."""
    return _called(agent, "stdin", _STDIN, "bytes or None", ctx)


def tools(agent: AgentSpec, ctx: AgentContext) -> list[HostTool[Any]]:
    """Return the host tools of a rollout."""
    return _called(agent, "tools", _TOOLS, "a list of HostTools", ctx)


def auxiliary(agent: AgentSpec, request: ChatRequest) -> str | None:
    """Return what an LLM call is for, if it is no part of the policy's work."""
    return _called(agent, "auxiliary", _TEXT_OR_NONE, "a text or None", request)


def summary(agent: AgentSpec, request: ChatRequest) -> bool:
    """Return whether an LLM call asks for the summary of a compaction."""
    return _called(agent, "summary", _FLAG, "True or False", request)


def own(agent: AgentSpec, request: ChatRequest) -> bool:
    """Return whether an LLM call begins a conversation of the agent's own."""
    return _called(agent, "own", _FLAG, "True or False", request)


def parse_event(agent: AgentSpec, line: str) -> list[AgentEvent]:
    """Return the events of a line of the agent's standard output."""
    expected = "a list such as [AgentEvent(kind='text', text=line)]"
    return _called(agent, "parse_event", _EVENTS, expected, line)


def failure(agent: AgentSpec, ended: AgentExit) -> str | None:
    """Return a sentence where the agent failed."""
    return _called(agent, "failure", _TEXT_OR_NONE, "a text or None", ended)


def _called(
    agent: AgentSpec,
    method: str,
    of: TypeAdapter[T],
    expected: str,
    *arguments: object,
    show: Callable[[object], str] = shown,
) -> T:
    who = f"the agent {agent.name!r} ({class_of(agent)})"
    with calling(AgentError, who, method):
        return checked(getattr(agent, method)(*arguments), of, AgentError, who, method, expected, show)


def _kind(value: object) -> str:
    """Return what a value is, without its text, which may be a secret."""
    return f"a value of the type {type(value).__name__}"
