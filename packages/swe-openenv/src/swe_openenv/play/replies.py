"""What a server's tools are for, and what their replies hold. Servers answer in many shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHELLS = (
    *("exec", "bash", "shell", "sh", "run_command", "execute_command", "run_shell", "run_bash", "terminal"),
    *("execute_bash", "bash_exec", "exec_command", "execute", "run", "command", "run_in_terminal"),
)
"""Names of tools that run a shell command, those that say so best first."""
COMMANDS = ("command", "cmd", "script", "code", "input")
"""Names of the parameter with the command."""
SUBMITS = (
    *("submit", "submit_solution", "submit_patch", "submit_answer"),
    *("finish", "grade", "evaluate", "verify"),
)
"""Names of tools that end a task and give its reward."""
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class ShellTool:
    """A tool that runs a shell command.

    Args:
        name: The tool.
        parameter: Its parameter that takes the command.
    """

    name: str
    parameter: str


def shell_tool(tools: Sequence[Mapping[str, Any]], wanted: str | None = None) -> ShellTool | None:
    """Return the tool that runs a shell command, judged by name and parameters; None without one.

    Args:
        tools: As `tools/list` gives them.
        wanted: The name of the only tool to consider.
    """
    named = {tool["name"].lower(): tool for tool in tools}
    for name in SHELLS if wanted is None else (wanted.lower(),):
        tool = named.get(name)
        parameter = None if tool is None else _command_of(tool)
        if tool is not None and parameter is not None:
            return ShellTool(tool["name"], parameter)
    return None


def submit_tool(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the tool without required parameters whose name says that it ends the task; None without one."""
    named = {tool["name"].lower(): tool for tool in tools}
    found = (named[name] for name in SUBMITS if name in named and not _schema(named[name])[1])
    return next((tool["name"] for tool in found), None)


def _command_of(tool: Mapping[str, Any]) -> str | None:
    properties, required = _schema(tool)
    if len(required) > 1:
        return None
    for name in COMMANDS:
        kind = properties.get(name)
        if kind is not None and set(required) <= {name} and _takes_text(kind):
            return name
    return None


def _takes_text(kind: object) -> bool:
    if not isinstance(kind, Mapping):
        return False
    options = [kind, *(option for option in kind.get("anyOf") or () if isinstance(option, Mapping))]
    return any(option.get("type") == "string" for option in options)


def _schema(tool: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the parameters of a tool and which of them it requires."""
    schema = tool.get("inputSchema") or tool.get("input_schema")
    if not isinstance(schema, Mapping):
        return {}, ()
    properties, required = schema.get("properties"), schema.get("required")
    return (
        properties if isinstance(properties, Mapping) else {},
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else (),
    )


def texts(value: object, depth: int = 0) -> Iterator[str]:
    """Yield every text in a reply, at most `_DEEPEST` levels deep."""
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for each in value.values():
            yield from texts(each, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for each in value:
            yield from texts(each, depth + 1)


def reward_in(result: object) -> float | None:
    """Return the reward in a tool's result: a field `reward`, else a result that is a bare number.

    Returns:
        The reward; None without one. It may be no finite number.
    """
    named = _named(result, 0)
    if named is not None:
        return named
    if isinstance(result, Mapping):  # of MCP: the bare result of a function that returns a number
        inner = result.get("structuredContent") or result.get("structured_content")
        bare = inner.get("result") if isinstance(inner, Mapping) else result.get("data")
        return _number(bare)
    return _number(result)


def _named(value: object, depth: int) -> float | None:
    if depth >= _DEEPEST:
        return None
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, Mapping):
        if (found := _number(value.get("reward"))) is not None:
            return found
        value = list(value.values())
    if isinstance(value, list):
        found_in = (_named(each, depth + 1) for each in value)
        return next((found for found in found_in if found is not None), None)
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
