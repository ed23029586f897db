"""Types: the JSON types of tools' parameters, for formats that print every value as text."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from swe_core.tokens.renderer import Tools

_DEPTH = 16
"""References that are followed from schema to schema."""


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
        value, written = found
        if "string" in declared and not _is_one(value, declared):
            return _string(text)
        return written


def _parameter(root: Mapping[str, Any], parameter: str) -> set[str]:
    """Return the declared types of a parameter; empty where any may be."""
    properties = _resolved(root, root).get("properties")
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    if schema is None:
        schema = root.get("additionalProperties")
    return _types(schema, root, _DEPTH)


def _types(schema: object, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or not depth:
        return set()
    schema = _resolved(schema, root)
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared} | ({"null"} if schema.get("nullable") is True else set())
    if isinstance(declared, list):
        return {one for one in declared if isinstance(one, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {_type(value) for value in values}
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            found = [_types(branch, root, depth - 1) for branch in branches]
            known = [one for one in found if one]
            return set().union(*known) if len(known) == len(found) or key == "allOf" else set()
    return set()


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
        return json.loads(written := json.dumps(value, ensure_ascii=False, allow_nan=False)), written
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
