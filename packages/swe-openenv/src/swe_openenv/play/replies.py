"""What a server's tools are for, and what their replies hold. Servers answer in many shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
MOST = 10_000
"""Values of a reply that are looked at."""
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
    options = [kind, *(option for option in _listed(kind.get("anyOf")) if isinstance(option, Mapping))]
    return any("string" in [option.get("type"), *_listed(option.get("type"))] for option in options)


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


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


def texts(reply: object) -> Iterator[str]:
    """Yield the texts in a reply, from its first `MOST` values, at most `_DEEPEST` levels deep."""
    waiting = [(reply, 0)]
    for _ in range(MOST):
        if not waiting:
            return
        value, depth = waiting.pop()
        if isinstance(value, str):
            yield value
        elif depth < _DEEPEST and isinstance(value, Mapping | list):
            inner = value.values() if isinstance(value, Mapping) else value
            waiting += reversed([(each, depth + 1) for each in islice(inner, MOST)])


def error_in(result: object) -> str | None:
    """Return what a tool said with a result that is marked as an error; None for any other result."""
    if not isinstance(result, Mapping) or True not in (result.get("isError"), result.get("is_error")):
        return None
    return next(texts(result.get("content")), "") or "it gave no reason"


def reward_in(result: object) -> float | None:
    """Return the reward in a tool's result: a field `reward`, else a result that is a bare number.

    Texts inside of a result may be the agent's own, such as the output of its tests. So the field counts only
    at the top of the result, or of its field `result`. What MCP gives as structured counts before its text,
    and text only where it is the whole of the result and JSON.

    Returns:
        The reward, a finite number; None without one, and for an error.
    """
    if error_in(result) is not None:
        return None
    if not isinstance(result, Mapping):
        return finite(result)
    structured = result.get("structuredContent") or result.get("structured_content")
    if isinstance(structured, Mapping) and not _wraps_text(structured):
        return _named(structured, bare=structured.get("result"))
    content = result.get("content")
    alone = isinstance(content, list) and "reward" not in result
    return _named(_document(content) if alone else result, bare=result.get("data"))


def _wraps_text(structured: Mapping[str, Any]) -> bool:
    """Return whether it is the text of a function that returns text, once more."""
    return structured.keys() == {"result"} and isinstance(structured["result"], str)


def _named(value: object, *, bare: object) -> float | None:
    """Return the number of the field `reward`, and `bare` where there is no such field."""
    inner = value.get("result") if isinstance(value, Mapping) else None
    for each in (value, inner):
        if isinstance(each, Mapping) and "reward" in each:
            return finite(each["reward"])
    return finite(bare)


def _document(content: Any) -> object:
    """Return the JSON that is the only item of a result's content; None without one."""
    text = content[0].get("text") if len(content) == 1 and isinstance(content[0], Mapping) else None
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def finite(value: object) -> float | None:
    """Return `value` if it is a finite number; None otherwise, also for a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
