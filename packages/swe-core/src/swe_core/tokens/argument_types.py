"""Types: the JSON types of tools' parameters, for formats that print every value as text."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from swe_core.tokens.renderer import Tools
from swe_core.tokens.wire_messages import is_utf8

_DEPTH = 16
"""References that are followed one after the other."""


class Types:
    """Turns printed values of arguments back into JSON.

    A parameter that is only a string stays as it is. Otherwise the text is a JSON value (or a Python one, as
    some templates print) if that has a declared type, and else a string. Where a string and null are both
    allowed, `null` is null: the two are printed alike.
    """

    def __init__(self, tools: Tools) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                schema = function.get("parameters", function.get("input_schema"))
                self._schemas[name] = schema if isinstance(schema, Mapping) else {}

    def offers(self, name: str) -> bool:
        """Return whether there is a tool of that name."""
        return name in self._schemas

    def may_be(self, tool: str, parameter: str, text: str) -> bool:
        """Return whether `text` may be a whole value: any is a string, all else is JSON or Python."""
        declared = _parameter(self._schemas.get(tool, {}), parameter)
        return not declared or "string" in declared or json_value(text) is not None

    def value(self, tool: str, parameter: str, text: str, is_text: bool | None = None) -> str:
        """Return the JSON of a value that was printed as `text`.

        Args:
            is_text: Whether it is a string, where the format says so.
        """
        root = self._schemas.get(tool, {})
        declared = {"string"} if is_text else set() if is_text is False else _parameter(root, parameter)
        if declared == {"string"}:
            return _string(text)
        found = json_value(text)
        if found is None:
            return _string(text)
        value, as_json = found
        if isinstance(value, str):  # strings are printed without quotes: these belong to it
            kept = "string" in declared or (not declared and is_text is None)
        else:
            kept = "string" in declared and not _is_one(value, declared)
        return _string(text) if kept else as_json


def _parameter(root: Mapping[str, Any], parameter: str) -> set[str]:
    """Return the declared types of a parameter; empty where any may be."""
    properties = _resolved(root, root).get("properties")
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    if schema is None:
        schema = root.get("additionalProperties")
    return _types(schema, root)


def _types(schema: object, root: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema or its branches declare; empty where any may be. Each is read once."""
    found: set[str] = set()
    seen: set[int] = set()
    todo = [(schema, False)]
    while todo:
        one, optional = todo.pop()
        one = _resolved(one, root) if isinstance(one, Mapping) else {}
        if id(one) in seen:
            continue
        seen.add(id(one))
        declared = one.get("type")
        values = [one["const"]] if "const" in one else one.get("enum")
        branches = [(key, one[key]) for key in ("anyOf", "oneOf", "allOf") if isinstance(one.get(key), list)]
        if isinstance(declared, str):
            found |= {declared} | ({"null"} if one.get("nullable") is True else set())
        elif isinstance(declared, list):
            found |= {kind for kind in declared if isinstance(kind, str)}
        elif isinstance(values, list):
            found |= {_type(value) for value in values}
        elif branches:
            key, inner = branches[0]
            todo += [(branch, optional or key == "allOf") for branch in inner]
        elif not optional:
            return set()
    return found


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reference inside the document, such as `#/$defs/Path`, leads to."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        found: Any = root
        for part in reference.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = found
    return schema


def _is_one(value: object, declared: set[str]) -> bool:
    kinds = {_type(value)}
    if kinds == {"integer"}:
        kinds.add("number")
    elif isinstance(value, float) and value.is_integer():
        kinds.add("integer")
    return not kinds.isdisjoint(declared)


def _type(value: object) -> str:
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kinds |= {dict: "object", list: "array", type(None): "null"}
    return kinds[type(value)]


def json_value(text: str) -> tuple[object, str] | None:
    """Return a value and its JSON; None where `text` is neither JSON nor a literal of Python."""
    try:
        return json.loads(text, parse_constant=_refuse), text.strip()
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text.strip())  # True, None, {'a': 1}: how Jinja prints what is no string
        return json.loads(text := written(value), parse_constant=_refuse), text
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def written(value: object) -> str:
    """Return a value as JSON that is valid in UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_utf8(text) else json.dumps(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
