"""Items of the Responses API to canonical messages, and tools to functions that the model sees."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from swe_core.api.messages import Message, dumps, sort_results, text_of
from swe_core.interception.dialects.base import BadRequest
from swe_core.interception.dialects.common import AssistantParts, is_hosted, kind_of
from swe_core.interception.dialects.responses_custom import as_function, custom_arguments
from swe_core.interception.dialects.responses_memory import Item, Memory

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_DIGITS = 32
"""Length of the part of an item's id that names its response."""
_SEALED = "swe-core:"
"""Begins the `encrypted_content` that we write: the reasoning's text, for clients that send nothing else."""
_LONGEST = 256
"""Characters of a tool's name with its namespace, which the name of each tool in it repeats."""
_BETWEEN = "__"
"""Stands between namespace and name in the name of a function that the model sees."""


class Origin(NamedTuple):
    """The tool of the client behind a function that the model sees."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def origin_of(origins: Mapping[str, Origin], function: str) -> Origin:
    """Return the tool behind `function`; a model may also call one that does not exist."""
    return origins.get(function) or Origin(function)


def item_id(kind: str, response: str, index: int) -> str:
    """Return the id of an output item, which names its response: 32 hexadecimal digits."""
    return f"{kind}_{response}_{index}"


def _response_of(given: object) -> str | None:
    """Return the response that an item's id names; None for an id that is not from `item_id`."""
    parts = given.split("_") if isinstance(given, str) else ()
    return parts[1] if len(parts) == 3 and len(parts[1]) == _DIGITS else None


def seal(reasoning: str) -> str:
    """Return the `encrypted_content` of a reasoning item."""
    return _SEALED + base64.b64encode(reasoning.encode()).decode()


def functions_of(tools: Sequence[Any], where: str = "tools") -> dict[Origin, dict[str, Any]]:
    """Return the functions in chat-completions form that the model sees, by tool.

    Args:
        where: The list's name for errors.

    Raises:
        BadRequest: A tool is malformed, or runs on OpenAI's servers.
    """
    found: dict[Origin, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        at = f"{where}[{index}]"
        if not isinstance(tool, dict):
            raise BadRequest(f"{at} is {kind_of(tool)}; send an object")
        kind = tool.get("type")
        if kind == "namespace":
            inner = tool.get("tools")
            if not isinstance(inner, list):
                raise BadRequest(f"{at}.tools is {kind_of(inner)}; send a list")
            space = _name(tool, at)
            for origin, function in functions_of(inner, f"{at}.tools").items():
                origin = origin._replace(namespace=space)
                name = _limited(f"{space}{_BETWEEN}{origin.name}", at)
                found[origin] = {**function, "name": name}
        elif kind in ("function", "custom"):
            origin = Origin(_name(tool, at), is_custom=kind == "custom")
            found[origin] = {
                "name": origin.name,
                **(as_function(tool, at) if origin.is_custom else _given(tool)),
            }
        elif not is_hosted(kind):
            raise BadRequest(
                f"{at} has the type {kind!r}, which this endpoint cannot run; send tools of type function, "
                "custom or namespace"
            )
    return found


@dataclass(slots=True, kw_only=True)
class _Turn(AssistantParts):
    """The assistant message at the end of the history."""

    response: str | None
    rank: int


class History:
    """The canonical messages and the additional tools of some items.

    Reasoning, text and calls that follow one another are one assistant message, as they were sampled. System
    messages at the beginning are one message: many chat templates take no more.

    Args:
        instructions: Text of a system message before all items.
        first: Index of the request's own first item in errors: items of stored responses come before it.

    Raises:
        BadRequest: An item is malformed, or of a type that this endpoint does not take.
    """

    def __init__(
        self, items: Sequence[Item], memory: Memory, instructions: str | None = None, first: int = 0
    ) -> None:
        self.messages: list[Message] = []
        self.functions: dict[Origin, dict[str, Any]] = {}
        self._memory = memory
        self._index = -first
        self._turn: _Turn | None = None
        self._system = [instructions] if instructions else []
        self._recalled: set[tuple[str, str]] = set()
        for item in items:
            self._add(item)
            self._index += 1
        self._end_turn()
        sort_results(self.messages)
        if self._system:
            self.messages.insert(0, {"role": "system", "content": "\n\n".join(self._system)})

    @property
    def _where(self) -> str:
        return f"input[{self._index}]"

    def _add(self, item: Item) -> None:
        kind = item.get("type") or "message"
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise BadRequest(
                f"{self._where} is an item of type {kind!r}, which this endpoint does not take; send "
                f"{', '.join(_READERS)}"
            )
        read(self, item)

    def _message(self, item: Item) -> None:
        given = item.get("role")
        role = _ROLES.get(given) if isinstance(given, str) else None
        if role is None:
            raise BadRequest(f"{self._where}.role is {given!r}; send one of {', '.join(_ROLES)}")
        text = self._text(item.get("content"), role)
        if role == "assistant":
            self._assistant(item, 1).texts.append(text)
        else:
            self._say({"role": role, "content": text})

    def _reasoning(self, item: Item) -> None:
        self._assistant(item, 0).thoughts.append(self._reasoning_of(item))

    def _call(self, item: Item) -> None:
        name, space, call_id = item.get("name"), item.get("namespace"), str(item.get("call_id") or "")
        if item["type"] == "function_call":
            given = item.get("arguments")
            arguments = given if isinstance(given, str) else dumps(given or {})
        else:
            text = str(item.get("input") or "")
            sampled = self._recall(call_id, text)
            arguments = custom_arguments(text) if sampled is None else sampled
        function = {"name": f"{space}{_BETWEEN}{name}" if space else str(name or ""), "arguments": arguments}
        self._assistant(item, 2).calls.append({"id": call_id, "type": "function", "function": function})

    def _recall(self, call_id: str, text: str) -> str | None:
        """Return kept arguments of a custom tool's call, each only once: they may be longer than `text`."""
        if (call_id, text) in self._recalled:
            return None
        self._recalled.add((call_id, text))
        return self._memory.arguments(call_id, text)

    def _result(self, item: Item) -> None:
        message: Message = {"role": "tool", "content": self._text(item.get("output"), "tool")}
        if isinstance(item.get("call_id"), str):
            message["tool_call_id"] = item["call_id"]
        self._say(message)

    def _tools(self, item: Item) -> None:
        tools = item.get("tools")
        if not isinstance(tools, list):
            raise BadRequest(f"{self._where}.tools is {kind_of(tools)}; send a list")
        self.functions |= functions_of(tools, f"{self._where}.tools")

    def _text(self, content: object, role: str) -> str:
        if type(content) is str:
            return content
        try:
            return text_of(content, role)
        except ValueError as error:
            raise BadRequest(f"{self._where}: {error}") from None

    def _reasoning_of(self, item: Item) -> str:
        """Return the text of a reasoning item, from the first of three places that has one."""
        if text := "".join(self._parts(item, "content")):
            return text
        sealed = item.get("encrypted_content")
        if isinstance(sealed, str) and sealed.startswith(_SEALED):
            with suppress(ValueError):  # cut or changed
                return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode()
        return "\n\n".join(self._parts(item, "summary"))

    def _parts(self, item: Item, key: str) -> list[str]:
        parts = item.get(key) or []
        if isinstance(parts, list):
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            found = [text for text in texts if isinstance(text, str)]
            if len(found) == len(parts):
                return found
        raise BadRequest(f"{self._where}.{key} is malformed; send a list of text parts")

    def _say(self, message: Message) -> None:
        self._end_turn()
        if message["role"] == "system" and not self.messages:
            self._system.append(message["content"])
        else:
            self.messages.append(message)

    def _assistant(self, item: Item, rank: int) -> _Turn:
        """Return the assistant message that an item belongs to.

        Our ids name the response. Without them, the order does: reasoning, text, calls.
        """
        response, turn = _response_of(item.get("id")), self._turn
        if turn is not None:
            known = response is not None and turn.response is not None
            if response == turn.response if known else rank > turn.rank or rank == turn.rank == 2:
                turn.rank = rank
                return turn
        self._end_turn()
        self._turn = _Turn(response=response, rank=rank)
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None


_READERS: Mapping[str, Callable[[History, Item], None]] = {
    "message": History._message,
    "reasoning": History._reasoning,
    "function_call": History._call,
    "function_call_output": History._result,
    "custom_tool_call": History._call,
    "custom_tool_call_output": History._result,
    "additional_tools": History._tools,
}


def _name(tool: Mapping[str, Any], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{where}.name is {kind_of(name)}; send the tool's name")
    return _limited(name, where)


def _limited(name: str, where: str) -> str:
    if len(name) > _LONGEST:
        raise BadRequest(f"{where}.name has {len(name)} characters; send at most {_LONGEST}")
    return name


def _given(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a function tool says besides its name."""
    kept = {key: tool[key] for key in ("description", "strict") if tool.get(key)}
    return {**kept, "parameters": tool.get("parameters") or {"type": "object", "properties": {}}}
