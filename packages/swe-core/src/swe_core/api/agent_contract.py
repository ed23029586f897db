"""What the methods of an `AgentSpec` return, checked. See `contracts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, AgentSpec, HostTool
from swe_core.api.contracts import calling, check_values, class_of, shown
from swe_core.api.engine import ChatRequest
from swe_core.api.sandbox import Asset
from swe_core.errors import AgentError

# Each function raises `AgentError`: the method raised any other exception than a `SweError`, or returned
# something else than its declaration says.


def assets(agent: AgentSpec) -> tuple[Asset, ...]:
    """Return the agent's assets."""
    with calling(AgentError, _who(agent), "assets"):
        return tuple(
            check_values(_who(agent), "assets", agent.assets(), AgentError, Asset, "a list of Assets")
        )


def files(agent: AgentSpec, ctx: AgentContext) -> dict[str, bytes]:
    """Return the files to write into the sandbox first: absolute path → content."""
    who = _who(agent)
    with calling(AgentError, who, "files"):
        found = _mapping(who, "files", agent.files(ctx), "a dict such as {f'{ctx.home}/config.json': b'{}'}")
    for path, content in found.items():
        if not isinstance(path, str) or not path.startswith("/"):
            raise AgentError(
                f"{who} returned the path {shown(path)} from files(), expected an absolute path inside the "
                "sandbox, such as f'{ctx.home}/config.json'"
            )
        if not isinstance(content, bytes):
            raise AgentError(
                f"{who} returned {_type(content)} for {path!r} from files(), expected bytes: write .encode()"
            )
    return found


def command(agent: AgentSpec, ctx: AgentContext) -> list[str]:
    """Return the program that runs the agent, and its arguments."""
    who = _who(agent)
    with calling(AgentError, who, "command"):
        given: object = agent.command(ctx)
        example = given.split() if isinstance(given, str) and given.strip() else ["my-agent", "--print"]
        expected = f"a list of texts such as {example!r}"
        argv = check_values(who, "command", given, AgentError, str, expected)
    if not argv or not argv[0]:
        raise AgentError(f"{who} returned {argv!r} from command(), expected {expected}")
    return argv


def env(agent: AgentSpec, ctx: AgentContext) -> dict[str, str]:
    """Return the environment of the agent's process."""
    who = _who(agent)
    with calling(AgentError, who, "env"):
        found = _mapping(who, "env", agent.env(ctx), "a dict such as {'MY_AGENT_URL': ctx.base_url}")
    for name, value in found.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise AgentError(
                f"{who} returned {_type(value)} for {shown(name)} from env(), expected texts: write str(…)"
            )
    return found


def stdin(agent: AgentSpec, ctx: AgentContext) -> bytes | None:
    """Return the agent's standard input."""
    who = _who(agent)
    with calling(AgentError, who, "stdin"):
        given: object = agent.stdin(ctx)
    if isinstance(given, bytes | None):
        return given
    raise AgentError(f"{who} returned {shown(given)} from stdin(), expected bytes or None: write .encode()")


def tools(agent: AgentSpec, ctx: AgentContext) -> list[HostTool[Any]]:
    """Return the host tools of a rollout."""
    with calling(AgentError, _who(agent), "tools"):
        return check_values(
            _who(agent), "tools", agent.tools(ctx), AgentError, HostTool, "a list of HostTools"
        )


def auxiliary(agent: AgentSpec, request: ChatRequest) -> str | None:
    """Return what an LLM call is for, if it is no part of the policy's work."""
    with calling(AgentError, _who(agent), "auxiliary"):
        return _text_or_none(agent, "auxiliary", agent.auxiliary(request))


def summary(agent: AgentSpec, request: ChatRequest) -> bool:
    """Return whether an LLM call asks for the summary of a compaction."""
    with calling(AgentError, _who(agent), "summary"):
        given: object = agent.summary(request)
    if isinstance(given, bool):
        return given
    raise AgentError(f"{_who(agent)} returned {shown(given)} from summary(), expected True or False")


def parse_event(agent: AgentSpec, line: str) -> list[AgentEvent]:
    """Return the events of a line of the agent's standard output."""
    expected = "a list such as [AgentEvent(kind='text', text=line)]"
    with calling(AgentError, _who(agent), "parse_event"):
        return check_values(
            _who(agent), "parse_event", agent.parse_event(line), AgentError, AgentEvent, expected
        )


def failure(agent: AgentSpec, ended: AgentExit) -> str | None:
    """Return a sentence where the agent failed."""
    with calling(AgentError, _who(agent), "failure"):
        return _text_or_none(agent, "failure", agent.failure(ended))


def _who(agent: AgentSpec) -> str:
    return f"the agent {agent.name!r} ({class_of(agent)})"


def _type(value: object) -> str:
    """Return what a value is, without its text, which may be a secret."""
    if isinstance(value, str | bytes | bytearray | int | float | list | tuple | set):
        name = type(value).__name__
        return name if name == "bytes" else f"{'an' if name == 'int' else 'a'} {name}"
    return shown(value)


def _mapping(who: str, method: str, given: object, expected: str) -> dict[Any, Any]:
    if not isinstance(given, Mapping):
        raise AgentError(f"{who} returned {_type(given)} from {method}(), expected {expected}")
    return dict(given)


def _text_or_none(agent: AgentSpec, method: str, given: object) -> str | None:
    if isinstance(given, str | None):
        return given
    raise AgentError(f"{_who(agent)} returned {shown(given)} from {method}(), expected a text or None")
