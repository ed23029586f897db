"""Fields of Google's requests, which have names in camel case and in snake case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from swe_core.interception.dialects.base import BadRequest
from swe_core.interception.dialects.common import kind_of


@cache
def snake(key: str) -> str:
    """Return a name in camel case in snake case."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)


def field_of(fields: Mapping[str, Any], key: str) -> Any:
    """Return the value at a key in camel case, or at the same key in snake case."""
    value = fields.get(key)
    return fields.get(snake(key)) if value is None else value


def object_of(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object at a key, empty where there is none."""
    value = field_of(fields, key)
    if not isinstance(value, dict | None):
        raise BadRequest(f"{key!r} is {kind_of(value)}; send an object")
    return value or {}


def list_of(value: Any) -> list[Any]:
    """Return a list; the API also takes the one element of a list without its brackets."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
