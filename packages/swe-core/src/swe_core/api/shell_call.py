"""The call with which a model runs a shell command by an agent's own tool, whatever that tool is named.

Scripts that stand for a model (recordings, tests, `swe-core doctor --agent`) work with many agents by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swe_core.api.messages import dumps

_COMMANDS = ("command", "cmd", "script", "commands")
"""Names of the parameter that takes the command."""
_WORDS = ("bash", "shell", "terminal", "exec", "run", "command")
"""Words in the names of shell tools, the most telling first."""
_FILLERS: Mapping[str, Any] = {"string": "run a command", "boolean": False, "array": [], "object": {}}


def shell_call(tools: Sequence[Mapping[str, Any]] | None, command: str) -> tuple[str, str] | None:
    """Return name and arguments (JSON) of the call that runs `command`; None if no tool runs commands.

    Args:
        tools: The offered tools, in chat-completions form.
        command: A command for `bash`.
    """
    best: tuple[int, str, str] | None = None
    for tool in tools or ():
        function = tool.get("function")
        if not isinstance(function, Mapping):
            continue
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(schema, Mapping) or not isinstance(properties, Mapping):
            continue
        key = next((key for key in _COMMANDS if key in properties), None)
        name = str(function.get("name"))
        rank = next((at for at, word in enumerate(_WORDS) if word in name.lower()), None)
        if key is None or rank is None or (best is not None and best[0] <= rank):
            continue
        best = rank, name, dumps(_arguments(schema, properties, key, command))
    return None if best is None else best[1:]


def _arguments(
    schema: Mapping[str, Any], properties: Mapping[str, Any], key: str, command: str
) -> dict[str, Any]:
    """Return `command` as the argument `key`, and a harmless value for each other required parameter."""
    arguments: dict[str, Any] = {}
    for name in schema.get("required") or ():
        arguments[name] = _filler(properties.get(name))
    is_list = isinstance(properties[key], Mapping) and properties[key].get("type") == "array"
    arguments[key] = ["bash", "-lc", command] if is_list else command
    return arguments


def _filler(schema: object) -> Any:
    if not isinstance(schema, Mapping):
        return _FILLERS["string"]
    for chosen in ("default", "const"):
        if chosen in schema:
            return schema[chosen]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return _FILLERS.get(str(kind), _FILLERS["string"])
