"""Custom tools, whose input is free text: shown to the model as functions with one argument, `input`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from swe_core.api.messages import dumps
from swe_core.interception.dialects.base import BadRequest
from swe_core.interception.dialects.common import kind_of

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_UNIT = re.compile(r'[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u]')
"""Text without escapes, or one escape."""
_LONGEST = len("\\u0000")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_INPUT = {"type": "string", "description": "The input of the tool, as it is."}


def as_function(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the description and the parameters of the function that stands for a custom tool.

    Raises:
        BadRequest: The format of the input is malformed.
    """
    described = [str(tool["description"])] if tool.get("description") else []
    form = tool.get("format") or {}
    if not isinstance(form, dict):
        raise BadRequest(f"{where}.format is {kind_of(form)}; send an object")
    if form.get("type") == "grammar":
        described.append(f"The argument `input` follows this grammar ({form.get('syntax')}):")
        described.append(str(form.get("definition")))
    elif form.get("type", "text") != "text":
        raise BadRequest(f"{where}.format.type is {form['type']!r}; send 'text' or 'grammar'")
    parameters = {"type": "object", "properties": {"input": _INPUT}, "required": ["input"]}
    return {"description": "\n\n".join(described), "parameters": parameters}


def custom_arguments(text: str) -> str:
    """Return the arguments of a call whose input is `text`."""
    return dumps({"input": text})


class InputReader:
    """Reads the input of a custom tool from the arguments of a call while they are sampled.

    Arguments of any other form than `{"input": "…"}` are the input themselves: the tool then says what is
    wrong with them.
    """

    def __init__(self) -> None:
        self._rest = ""  # what is not read yet
        self._inside = False
        self._closed = False

    def add(self, piece: str) -> str:
        """Return the input that `piece` adds."""
        if self._closed:
            return ""
        self._rest += piece
        if not self._inside:
            begin = _BEGIN.match(self._rest)
            if begin is None:
                return ""
            self._inside, self._rest = True, self._rest[begin.end() :]
        return self._read(ended=False)

    def end(self) -> str:
        """Return the rest of the input."""
        if self._inside:
            return "" if self._closed else self._read(ended=True)
        try:
            value = json.loads(self._rest)
        except (ValueError, RecursionError):
            return self._rest
        found = value.get("input") if isinstance(value, dict) else None
        return _text(found) if isinstance(found, str) else self._rest

    def _read(self, *, ended: bool) -> str:
        """Read up to the end of the string, or to an escape that is not complete."""
        rest, at, units = self._rest, 0, list[str]()
        while at < len(rest) and rest[at] != '"':
            unit = _UNIT.match(rest, at)
            if unit is not None:
                end, text = unit.end(), _unescaped(unit.group())
            elif ended or len(rest) - at >= _LONGEST:  # no valid escape: a backslash as it is
                end, text = at + 1, "\\"
            else:
                break
            if not ended and "\ud800" <= text[-1] <= "\udbff" and _may_follow(rest[end:]):
                break
            units.append(text)
            at = end
        self._closed = at < len(rest) and rest[at] == '"'
        self._rest = rest[at:]
        return _text("".join(units))


def _may_follow(rest: str) -> bool:
    """Return whether the other half of a surrogate pair may come where its beginning, if any, is `rest`."""
    return len(rest) < _LONGEST and rest[:2] in ("", "\\", "\\u")


def _unescaped(unit: str) -> str:
    if unit[0] != "\\":
        return unit
    return chr(int(unit[2:], 16)) if unit[1] == "u" else _ESCAPED.get(unit[1], unit)


def _text(text: str) -> str:
    """Join halves of surrogate pairs, and replace lone ones."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
