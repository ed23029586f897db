"""Constant strings that an expression composes, such as `"_get" + "frame"`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

_MAX_PIECE, _MAX_TEXT, _MAX_DEPTH = 2000, 10_000, 20
_METHODS = frozenset(
    ("replace", "lower", "upper", "swapcase", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix")
)
Known = str | list[ast.expr]
_NOTHING: Mapping[str, Known] = MappingProxyType({})
_GAP = re.compile(r"%s|\{\}")


def folded(node: ast.expr, known: Mapping[str, Known] = _NOTHING) -> tuple[str | None, frozenset[int]]:
    """Return the text of an expression of constants, and the ids of its inner nodes; None for other
    expressions.

    Bytes are read as Latin-1. `known` says what names stand for: their text, or a list of expressions.
    """
    parts = _Parts(known)
    text = _fold(node, parts, 0)
    return text, frozenset(parts)


class _Parts(set[int]):
    """The ids of inner nodes, and the names that are known."""

    def __init__(self, known: Mapping[str, Known]) -> None:
        self.known = known

    def listed(self, node: ast.expr) -> list[ast.expr] | None:
        known = self.known.get(node.id) if isinstance(node, ast.Name) else None
        return (
            node.elts
            if isinstance(node, ast.List | ast.Tuple)
            else known
            if isinstance(known, list)
            else None
        )


def _fold(node: ast.expr, parts: _Parts, depth: int) -> str | None:
    if depth > _MAX_DEPTH:
        return None
    below = depth + 1
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(data)):
            return data.decode("latin-1")
        case (
            ast.Call(func=ast.Name(id="bytes" | "bytearray"), args=[given])
            | ast.Call(func=ast.Name(id="map"), args=[ast.Name(id="chr"), given])
        ) if (listed := parts.listed(given)) is not None:
            return _characters(listed)
        case ast.BinOp(op=ast.Add()):
            return _joined("", _sum(node, parts), parts, below)
        case ast.JoinedStr(values=values):
            return _joined("", list(values), parts, below)
        case ast.FormattedValue(value=value, format_spec=None):
            return _fold(value, parts, below)
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            given = list(right.elts) if isinstance(right, ast.Tuple) else [right]
            return _filled(_fold(left, parts, below), given, parts, below)
        case ast.Subscript(value=value, slice=ast.Slice() as where):
            return _cut(_fold(value, parts, below), where)
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(number))]) if (
            0 <= number < 0x110000
        ):
            return chr(number)
        case ast.Call(func=ast.Attribute(value=value, attr="join"), args=[given]):
            between, listed = _fold(value, parts, below), parts.listed(given)
            if listed is not None:
                return None if between is None else _joined(between, listed, parts, below)
            return _fold(given, parts, below) if between == "" else None
        case ast.Call(func=ast.Name(id="reversed"), args=[given]):
            return (_fold(given, parts, below) or "")[::-1] or None
        case ast.Name(id=name) if isinstance(known := parts.known.get(name), str):
            return known
        case ast.Call(func=ast.Attribute(value=value, attr="format"), args=given, keywords=[]):
            return _filled(_fold(value, parts, below), given, parts, below)
        case ast.Call(func=ast.Attribute(value=value, attr="decode" | "encode")):
            return _fold(value, parts, below)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=given) if name in _METHODS:
            return _method(_fold(value, parts, below), name, [_fold(one, parts, below) for one in given])
    return None


def _characters(given: list[ast.expr]) -> str | None:
    numbers = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, int)]
    if len(numbers) != len(given) or len(given) > _MAX_TEXT or not all(0 <= n < 0x110000 for n in numbers):
        return None
    return "".join(map(chr, numbers))


def _sum(node: ast.expr, parts: _Parts) -> list[ast.expr]:
    """Return the operands of a chain of `+`, without recursion: a chain may be long."""
    found = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        found.append(node.right)
        node = node.left
        parts.add(id(node))
    return [node, *reversed(found)]


def _joined(between: str, given: list[ast.expr], parts: _Parts, depth: int) -> str | None:
    if len(between) * len(given) > _MAX_TEXT:
        return None
    texts, room = [], _MAX_TEXT
    for one in given:
        text = _fold(one, parts, depth)
        if text is None or len(text) > room:
            return None
        texts.append(text)
        room -= len(text)
    return between.join(texts)


def _filled(template: str | None, given: list[ast.expr], parts: _Parts, depth: int) -> str | None:
    if template is None or len(template) > _MAX_PIECE:
        return None
    texts = [_fold(one, parts, depth) for one in given]
    if any(text is None or len(text) > _MAX_PIECE for text in texts):
        return None
    if sum(len(text or "") for text in texts) > _MAX_TEXT:
        return None
    left: Iterator[str | None] = iter(texts)
    return _GAP.sub(lambda gap: next(left, None) or "", template)


def _method(text: str | None, name: str, given: list[str | None]) -> str | None:
    if text is None or len(text) > _MAX_PIECE or any(one is None or len(one) > 100 for one in given):
        return None
    try:
        result = str(getattr(text, name)(*given))
    except (TypeError, ValueError):
        return None
    return result if len(result) <= _MAX_TEXT else None


def _cut(text: str | None, where: ast.Slice) -> str | None:
    bounds = []
    for bound in (where.lower, where.upper, where.step):
        try:
            bounds.append(None if bound is None else ast.literal_eval(bound))
        except (ValueError, TypeError):
            return None
    try:
        return None if text is None else text[slice(*bounds)]
    except (TypeError, ValueError):
        return None
